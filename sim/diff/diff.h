// SPDX-License-Identifier: Apache-2.0
// How far the tensors of two steps are apart, and which steps of two runs are compared:
// docs/diff.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/step_tables.h"
#include "dlsim/trace.h"

namespace dlsim::sim {

// What is told of a tensor in two steps, a and b.
enum DiffFigure : size_t {
  kNormRatio,           // of b to a: 1 if both are zero, infinite if only a is
  kDifference,          // what the threshold is about: see TensorDifference
  kRelativeDifference,  // of values: the norm of b - a over that of a
  kCosine,              // of values: of the angle between them
  kHistogramDistance,   // of tables: earth mover's distance of the nonzero magnitudes, in binades
  kZeroDifference,      // of tables: how far the shares of zeros are apart
};
inline constexpr size_t kDiffFigures = 6;

struct TensorDifference {
  std::string name;
  Role role = Role::kGrad;
  uint64_t elements = 0;
  double norm_a = 0, norm_b = 0;  // float64 L2 norms

  // Elements that are infinite or NaN in one and something else in the other; of tables by how much
  // their counts differ.
  uint64_t nonfinite_differences = 0;

  // By DiffFigure. kDifference is the relative difference, or of tables the largest of |norm ratio
  // - 1| and their two figures; infinite with nonfinite_differences.
  std::array<std::optional<double>, kDiffFigures> figures = {};

  double difference() const { return *figures[kDifference]; }
};

// Why a tensor was not compared.
enum class Mismatch : uint8_t { kOnlyInA, kOnlyInB, kShape };

constexpr auto EnumNames(Mismatch) {
  return std::to_array<EnumName<Mismatch>>({{Mismatch::kOnlyInA, "only in a"},
                                            {Mismatch::kOnlyInB, "only in b"},
                                            {Mismatch::kShape, "other shape"}});
}

// One at a step, or the first of several steps.
struct UnmatchedTensor {
  std::string name;
  Mismatch why = Mismatch::kOnlyInA;
  std::vector<uint64_t> shape_a, shape_b;  // empty where there is none
  int64_t first_step = 0;
  uint64_t steps = 0;
};

struct ComparedStep {
  int64_t step_a = 0, step_b = 0;          // numbers
  std::vector<TensorDifference> tensors;   // those that both have, in the order of a
  std::vector<UnmatchedTensor> unmatched;  // those of a, then those only in b
};

// Compares gradients: those of a step, which are the float32 sums over its micro-steps. Forward
// tensors have no value of a step and are left out. Of equal tensors, also of zeros, the relative
// difference is 0 and the cosine 1; if one is zero, the cosine is 0, and the relative difference 1
// or, if that is a, infinite. Throws Error if reading fails.
ComparedStep CompareSteps(const TraceStep& a, const TraceStep& b);

// Compares the tables of gradients.
ComparedStep CompareSteps(const StepTables& a, const StepTables& b);

// Which step of one run is compared with which of the other.
enum class Alignment : uint8_t { kNumber, kIndex };

constexpr auto EnumNames(Alignment) {
  return std::to_array<EnumName<Alignment>>(
      {{Alignment::kNumber, "number"}, {Alignment::kIndex, "index"}});
}

struct AlignedSteps {
  std::vector<std::pair<size_t, size_t>> pairs;  // indices in a and b, in order
  std::vector<int64_t> only_a, only_b;           // numbers of the others
};

// Aligns ascending step numbers: equal numbers, or by place from the first step on.
AlignedSteps AlignSteps(std::span<const int64_t> a, std::span<const int64_t> b,
                        Alignment alignment);

}  // namespace dlsim::sim
