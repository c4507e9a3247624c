// SPDX-License-Identifier: Apache-2.0
// What a comparison of two runs comes to: the first step and tensor where they part, and how far
// each tensor does.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/diff/compared_step.h"

namespace dlsim::sim {

// Above what runs differ in that only sum in another order, below what rounding to any 16-bit
// format changes: fp16 changes a gradient by 2e-4 of its norm.
inline constexpr double kDiffThreshold = 1e-4;

// The largest and smallest of what was added.
struct Extent {
  std::optional<double> low, high;
  void Add(double value) {
    if (!low || value < *low) low = value;
    if (!high || value > *high) high = value;
  }
};

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
  double difference = 0;                     // the largest ...
  int64_t worst_step = 0;                    // ... and its step of a
  uint64_t nonfinite_differences = 0;
  Extent relative_difference = {}, cosine = {}, norm_ratio = {};
  Extent histogram_distance = {}, zero_difference = {};
};

// A tensor that could not be compared at some steps.
struct UnmatchedOverSteps {
  UnmatchedTensor first;  // as it is at the first of them
  int64_t first_step = 0;
  uint64_t steps = 0;
};

class DiffResult {
 public:
  explicit DiffResult(double threshold) : threshold_(threshold) {}

  void Add(const ComparedStep& step);

  double threshold() const { return threshold_; }
  const std::vector<StepDiff>& steps() const { return steps_; }
  const std::vector<TensorDiff>& tensors() const { return tensors_; }  // as they come first
  const std::vector<UnmatchedOverSteps>& unmatched() const { return unmatched_; }

  // The first step with a tensor beyond the threshold; null if there is none.
  const StepDiff* FirstBeyond() const;

  // Indices of the tensors, those with the largest difference first.
  std::vector<size_t> WorstFirst() const;

 private:
  void AddTensor(const TensorDifference& difference, StepDiff& step);

  double threshold_;
  std::vector<StepDiff> steps_;
  std::vector<TensorDiff> tensors_;
  std::vector<UnmatchedOverSteps> unmatched_;
  std::map<std::string, size_t> index_, unmatched_index_;
};

}  // namespace dlsim::sim
