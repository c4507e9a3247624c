// SPDX-License-Identifier: Apache-2.0
// Two runs of one model compared: the first step and tensor where they part, and how far each
// tensor does. What is said of it: in a terminal, as JSON (schema "dlsim.diff/1") and CSV
// (docs/diff.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/profile.h"
#include "dlsim/sim/step.h"
#include "dlsim/step_tables.h"
#include "dlsim/trace.h"
#include "sim/base/expectation.h"
#include "sim/base/named_list.h"
#include "sim/base/rows.h"

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

// Above what runs differ in that only sum in another order, below what rounding to any 16-bit
// format changes: fp16 changes a gradient by 2e-4 of its norm.
inline constexpr double kDiffThreshold = 1e-4;

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

// One of the two runs, opened.
struct DiffRun {
  std::string path;
  std::unique_ptr<TraceReader> trace;      // this ...
  std::unique_ptr<ProfileReader> profile;  // ... or that
  StepSource source;
  std::vector<int64_t> steps;  // numbers, ascending
};

// The largest and smallest of what was added.
struct Extent {
  std::optional<double> low, high;
  void Add(double value) {
    if (!low || value < *low) low = value;
    if (!high || value > *high) high = value;
  }
};

// By DiffFigure.
using Extents = std::array<Extent, kDiffFigures>;

// One step: its worst tensor.
struct StepDiff {
  int64_t step_a = 0, step_b = 0;
  double difference = 0;               // of that tensor
  uint64_t nonfinite_differences = 0;  // the same
  size_t tensor = 0;                   // index of it; nothing to look at if tensors is 0
  size_t tensors = 0;                  // compared
  size_t tensors_beyond = 0;           // beyond the threshold
};

// One tensor over the steps.
struct TensorDiff {
  std::string name;
  Role role = Role::kGrad;
  uint64_t steps = 0, steps_beyond = 0;
  std::optional<int64_t> first_beyond = {};  // step of a
  int64_t worst_step = 0;                    // step of a with the largest difference
  uint64_t nonfinite_differences = 0;
  Extents figures = {};

  double difference() const { return *figures[kDifference].high; }
};

struct Diff {
  DiffRun a, b;
  AlignedSteps aligned = {};
  double threshold = kDiffThreshold;
  std::vector<StepDiff> steps = {};
  NamedList<TensorDiff> tensors = {};  // as they come first
  NamedList<UnmatchedTensor> unmatched = {};

  // Whether values are compared; else tables, as one of the runs is a profile.
  bool has_values() const { return a.trace != nullptr && b.trace != nullptr; }

  void Add(const ComparedStep& step);

  // The first step with a tensor beyond the threshold; null if there is none.
  const StepDiff* FirstBeyond() const;

  // The tensors, those with the largest difference first.
  std::vector<const TensorDiff*> WorstFirst() const;
};

// Opens two runs, each a trace or a profile, and aligns their steps. A trace that is compared with
// a profile is read as the profile was made: with its accumulation. Throws Error for a bad file, or
// without a common step.
Diff OpenDiff(const std::string& a, const std::string& b, const TraceOptions& options,
              Alignment alignment);

// Compares the aligned steps, adds each to the result and passes it to `visit`. Throws Error for a
// bad file.
void CompareRuns(Diff& diff, const std::function<void(const ComparedStep& step)>& visit);

// The whole in figures; those of the tensors over all of them.
struct DiffSummary {
  size_t steps = 0, tensors = 0;  // that were compared
  size_t steps_beyond = 0, tensors_beyond = 0;
  std::optional<int64_t> first_beyond = {};
  Extents figures = {};
  uint64_t nonfinite_differences = 0;
  size_t unmatched_steps = 0, unmatched_tensors = 0;
};
DiffSummary Summarize(const Diff& diff);

// What expectations may name.
std::vector<Figure> FiguresOf(const Diff& diff);

void WriteDiffJson(const Diff& diff, const TellRows& options,
                   std::span<const ExpectationOutcome> expectations, OutputFile& out);

std::string DiffCsvHeader();
std::string DiffCsvRows(const ComparedStep& step);

void AddDiffKeys(std::vector<KeyTable>& tables);

// The answer in one to three sentences.
std::vector<std::string> DiffLines(const Diff& diff);

struct DiffReportOptions {
  uint64_t top = 20;      // tensors in the table
  bool by_layer = false;  // a table of the layers, in file order
  bool details = false;   // a table of the steps
};

// Returns the report.
std::string FormatDiff(const Diff& diff, const DiffReportOptions& options);

}  // namespace dlsim::sim
