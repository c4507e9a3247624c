// SPDX-License-Identifier: Apache-2.0
// What a run counts of single tensors.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/replay/harm.h"
#include "sim/replay/run_state.h"

namespace dlsim::sim {

// Adds the counters of one tensor in a step to the record.
void RunState::CountStep(const Measured& step, size_t t, ReplayStep& record) {
  const bool gradient = step.judged.step.tensors[t].role == Role::kGrad;
  (gradient ? record.gradients : record.activations).Merge(step.judged.totals[t]);
  const auto& bounds = step.judged.answers[t].bounds;
  if (!bounds) return;
  (gradient ? record.uncertain->gradients : record.uncertain->activations).Merge(bounds->counters);
}

bool RunState::SkipsTensor(const Measured& step, size_t t, const ReplayStep& record) const {
  const bool gradient = step.judged.step.tensors[t].role == Role::kGrad;
  const bool grouped = gradient && !record.optimizers.empty();
  return grouped ? record.optimizers[step.groups[t]].skipped : record.skipped;
}

// Adds what tensors lose to that of the run.
void RunState::CountLosses(const Measured& step, const ReplayStep& record) {
  SharedLosses::Way way = {conversion_, std::bit_cast<uint64_t>(record.scale), {record.skipped}};
  for (const OptimizerStep& optimizer : record.optimizers) way.skipped.push_back(optimizer.skipped);
  const auto add = [&](std::vector<TensorLoss>& losses) {
    for (size_t t = 0; t < step.judged.totals.size(); ++t) {
      const size_t place = step.shared.places[t];
      if (place >= losses.size()) losses.resize(place + 1);
      const TensorStats& total = step.judged.totals[t];
      if (!(total.sum_of_squares > 0)) continue;
      ++losses[place].nonzero_steps;
      losses[place].noise_steps += step.shared.noise[t];
      if (!SkipsTensor(step, t, record)) losses[place].harm.Add(total.harm());
    }
  };
  if (units_.empty()) return step.shared.losses.Advance(way, add, losses_);
  if (losses_ == nullptr) losses_ = std::make_shared<std::vector<TensorLoss>>();
  add(*losses_);  // each layer or tensor has a scale, so that nothing is shared
}

// Adds all to the tensor of the run.
void RunState::CountTensor(const Measured& step, size_t t, const ReplayStep& record) {
  const TensorStats& total = step.judged.totals[t];
  const bool skipped = SkipsTensor(step, t, record);
  const StepTensor& header = step.judged.step.tensors[t];
  const size_t place = step.shared.places[t];
  // A run sees each step until it stops, so that only the next place can be new to it.
  if (place == result_.tensors.size()) result_.tensors.push_back({header.name, header.role});
  ReplayTensor& tensor = result_.tensors[place];
  tensor.stats.Merge(total);
  if (!skipped) {
    tensor.worst_step_energy_lost = std::max(tensor.worst_step_energy_lost, total.energy_lost());
  }
  if (total.sum_of_squares > 0) {
    ++tensor.nonzero_steps;
    tensor.noise_steps += step.shared.noise[t];
    if (!skipped) tensor.harm.Add(total.harm());
    CountChannels(step, t, skipped, record, tensor.channels);
  }
  if (total.overflow > 0 && !tensor.first_overflow_step) tensor.first_overflow_step = record.step;
  if (const auto& bounds = step.judged.answers[t].bounds) {
    tensor.AddUncertainty(bounds->counters);
    if (!skipped) {
      tensor.uncertain->worst_step_energy_lost.RaiseTo(
          bounds->counters.RangeOf<&TensorStats::energy_lost>(total));
    }
  }
  if (units_.empty()) return;
  const double scale = scale_of_tensor_[t];
  if (!tensor.scales) tensor.scales = ScaleRange{scale, scale, scale};
  tensor.scales =
      ScaleRange{std::fmin(tensor.scales->min, scale), std::fmax(tensor.scales->max, scale), scale};
}

void RunState::CountChannels(const Measured& step, size_t t, bool skipped, const ReplayStep& record,
                             ChannelHarm& harm) const {
  const std::vector<ChannelCurves>& channels = step.judged.step.channels;
  if (channels.empty()) return;
  const double scale = units_.empty() ? record.scale : scale_of_tensor_[t];
  const auto quantum = skipped ? std::nullopt : LogQuantum(run_.conversion, scale);
  harm.Add(channels[t], quantum, AboveFloor(step.judged.totals[t].harm(), run_.conversion));
}

}  // namespace dlsim::sim
