// SPDX-License-Identifier: Apache-2.0
#include "dlsim/sim/replay.h"

#include <utility>

#include "sim/replay/path_step.h"
#include "sim/replay/replay_consumer.h"
#include "sim/replay/trace_source.h"

namespace dlsim::sim {

std::vector<ReplayResult> Replay(const GradientSource& source, std::vector<ReplayRun> runs,
                                 const ReplayOptions& options) {
  ReplayConsumer consumer(std::move(runs), options);
  ForEachStep(source, options.step, consumer);
  return consumer.TakeResults();
}

std::vector<ReplayResult> Replay(const TraceReader& trace, std::vector<ReplayRun> runs,
                                 const ReplayOptions& options) {
  return Replay(TraceSource(trace, options.accumulate_steps), std::move(runs), options);
}

void SummaryUncertainty::Add(const ReplayStep& step) {
  const StepUncertainty& open = *step.uncertain;
  steps += !open.certain;
  gradients.Merge(open.gradients);
  activations.Merge(open.activations);
  clipped_elements.Add(open.clipped_elements);
  clipped_steps.Add(open.clipped);
  if (!step.skipped)
    worst_step_energy_lost.RaiseTo(
        open.gradients.RangeOf<&TensorStats::energy_lost>(step.gradients));
}

PathStep PathStepOf(const ReplayStep& step) {
  return {step.step,
          step.scale,
          step.next_scale,
          step.skipped,
          step.finite,
          step.lower_scale_helps,
          step.gradients.energy_lost()};
}

void ReplaySummary::Add(const ReplayStep& step) {
  AddToPath(PathStepOf(step), *this);
  clipped_elements += step.clipped_elements.value_or(0);
  clippable_elements += step.clippable_elements;
  clipped_steps += step.clipped;
  gradients.Merge(step.gradients);
  activations.Merge(step.activations);
  if (!step.skipped && !step.harm.worst_tensor.empty()) harm.Add(step.harm.mean);
  if (!step.skipped && !step.activation_harm.worst_tensor.empty()) {
    activation_harm.Add(step.activation_harm.mean);
  }
  if (!step.uncertain) return;
  if (!uncertain) uncertain.emplace();
  uncertain->Add(step);
}

}  // namespace dlsim::sim
