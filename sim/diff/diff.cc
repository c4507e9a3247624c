// SPDX-License-Identifier: Apache-2.0
#include "sim/diff/diff.h"

#include <algorithm>
#include <numeric>

namespace dlsim::sim {
namespace {

void AddFigures(const TensorDifference& difference, TensorDiff& into) {
  into.norm_ratio.Add(difference.norm_ratio());
  if (difference.relative_difference) into.relative_difference.Add(*difference.relative_difference);
  if (difference.cosine) into.cosine.Add(*difference.cosine);
  if (difference.histogram_distance) into.histogram_distance.Add(*difference.histogram_distance);
  if (difference.zero_difference) into.zero_difference.Add(*difference.zero_difference);
  into.nonfinite_differences += difference.nonfinite_differences;
}

}  // namespace

void DiffResult::AddTensor(const TensorDifference& difference, StepDiff& step) {
  const auto [found, added] = index_.try_emplace(difference.name, tensors_.size());
  if (added) tensors_.push_back({.name = difference.name, .role = difference.role});
  TensorDiff& tensor = tensors_[found->second];
  const double amount = difference.difference();
  AddFigures(difference, tensor);
  if (tensor.steps++ == 0 || amount > tensor.difference) {
    tensor.difference = amount;
    tensor.worst_step = step.step_a;
  }
  if (step.tensors++ == 0 || amount > step.difference) {
    step.difference = amount;
    step.nonfinite_differences = difference.nonfinite_differences;
    step.tensor = found->second;
  }
  if (!(amount > threshold_)) return;
  ++step.tensors_beyond;
  ++tensor.steps_beyond;
  if (!tensor.first_beyond) tensor.first_beyond = step.step_a;
}

void DiffResult::Add(const ComparedStep& step) {
  StepDiff& of_step = steps_.emplace_back();
  of_step.step_a = step.step_a;
  of_step.step_b = step.step_b;
  for (const TensorDifference& difference : step.tensors) AddTensor(difference, of_step);
  for (const UnmatchedTensor& tensor : step.unmatched) {
    const auto [found, added] = unmatched_index_.try_emplace(tensor.name, unmatched_.size());
    if (added) unmatched_.push_back({tensor, step.step_a, 0});
    ++unmatched_[found->second].steps;
  }
}

const StepDiff* DiffResult::FirstBeyond() const {
  const auto found =
      std::ranges::find_if(steps_, [](const StepDiff& step) { return step.tensors_beyond > 0; });
  return found == steps_.end() ? nullptr : &*found;
}

std::vector<size_t> DiffResult::WorstFirst() const {
  std::vector<size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(
      order, [&](size_t i, size_t k) { return tensors_[i].difference > tensors_[k].difference; });
  return order;
}

}  // namespace dlsim::sim
