// SPDX-License-Identifier: Apache-2.0
#include "dlsim/sim/replay.h"

#include <utility>

#include "sim/replay/path_step.h"
#include "sim/replay/replay_runs.h"
#include "sim/replay/step_sources.h"

namespace dlsim::sim {

ReplayRun MakeRun(const NamedFormat& format, const PolicyInfo& policy,
                  ConfiguredScaler configured) {
  return {.format = format.name,
          .policy = std::string(policy.name),
          .conversion = {format.format},
          .rules = policy.rules,
          .scaler = std::move(configured.scaler),
          .clipping = {.max_norm = {}, .max_value = {}, .rule = policy.rules.clip_rule},
          .initial = std::move(configured.initial)};
}

ReplayRun MakeRun(std::string_view format, std::string_view policy,
                  std::span<const std::string> settings) {
  const NamedFormat named = ParseFormat(format);
  const PolicyInfo& info = FindPolicy(policy);
  return MakeRun(named, info, info.make(ResolveParameters(info, settings), named.name));
}

std::vector<ReplayResult> Replay(const StepSource& source, std::vector<ReplayRun> runs,
                                 const ReplayOptions& options) {
  const StepOptions step_options = OptionsFor(runs, options.step);
  ReplayRuns replay(std::move(runs), options);
  ForEachStep(source, step_options, [&](size_t i, const Step& step) {
    replay.Take(i, step);
    return !replay.AllStopped();
  });
  return replay.TakeResults();
}

std::vector<ReplayResult> Replay(const TraceReader& trace, std::vector<ReplayRun> runs,
                                 const ReplayOptions& options) {
  return Replay(TraceSteps(trace, options.accumulate_steps), std::move(runs), options);
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
}

}  // namespace dlsim::sim
