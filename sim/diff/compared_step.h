// SPDX-License-Identifier: Apache-2.0
// Two steps compared, tensor by tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dlsim/measure_step.h"
#include "dlsim/profile.h"
#include "dlsim/trace.h"
#include "sim/diff/tensor_difference.h"

namespace dlsim::sim {

// Why a tensor was not compared.
enum class Mismatch : uint8_t { kOnlyInA, kOnlyInB, kShape };

constexpr auto EnumNames(Mismatch) {
  return std::to_array<EnumName<Mismatch>>({{Mismatch::kOnlyInA, "only in a"},
                                            {Mismatch::kOnlyInB, "only in b"},
                                            {Mismatch::kShape, "other shape"}});
}

struct UnmatchedTensor {
  std::string name;
  Mismatch why = Mismatch::kOnlyInA;
  std::vector<uint64_t> shape_a, shape_b;  // empty where there is none
};

struct ComparedStep {
  int64_t step_a = 0, step_b = 0;          // numbers
  std::vector<TensorDifference> tensors;   // those that both have, in the order of a
  std::vector<UnmatchedTensor> unmatched;  // those of a, then those only in b
};

// Compares effective gradients element by element. Throws Error if reading fails.
ComparedStep CompareSteps(const TraceStep& a, const TraceStep& b);

// A step as histograms. With micro-steps, all of their elements count.
struct BinnedStep {
  const ProfileStep& step;
  const HistogramEdges& edges;
};

// Compares histograms. Tensors with another number of elements have another shape.
ComparedStep CompareSteps(const BinnedStep& a, const BinnedStep& b);

}  // namespace dlsim::sim
