// SPDX-License-Identifier: Apache-2.0
// What one replay came to, from its steps: the definition that summaries and sweeps must equal.
#pragma once

#include <algorithm>

#include "dlsim/sim/replay.h"
#include "dlsim/sim/sweep.h"

namespace dlsim::sim {

inline PathSummary PathOf(const ReplayResult& result) {
  PathSummary path;
  if (result.steps.empty()) return path;
  path.steps = result.steps.size();
  path.final_scale = result.steps.back().next_scale;
  path.min_scale = path.max_scale = result.steps.front().scale;
  for (const ReplayStep& step : result.steps) {
    path.skipped_steps += step.skipped;
    path.skip_run = step.skipped ? path.skip_run + 1 : 0;
    path.longest_skip_run = std::max(path.longest_skip_run, path.skip_run);
    path.nonfinite_steps += !step.finite;
    path.hopeless_steps += !step.lower_scale_helps;
    path.min_scale = std::min(path.min_scale, step.scale);
    path.max_scale = std::max(path.max_scale, step.scale);
    if (step.skipped) continue;
    if (!path.first_applied_step) path.first_applied_step = step.step;
    path.worst_step_energy_lost =
        std::max(path.worst_step_energy_lost, step.gradients.energy_lost());
  }
  return path;
}

inline SweepOutcome OutcomeOf(const ReplayResult& result) {
  SweepOutcome outcome;
  static_cast<PathSummary&>(outcome) = PathOf(result);
  double underflown = 0;
  for (const ReplayStep& step : result.steps) {
    outcome.gradients.Merge(step.gradients);
    underflown += step.skipped ? 0 : step.gradients.energy_lost();
  }
  outcome.gradients.quantized_sum_of_squares = 0;
  const uint64_t applied = outcome.steps - outcome.skipped_steps;
  if (applied > 0) outcome.mean_energy_lost = underflown / static_cast<double>(applied);
  for (const ScalerEvent& event : result.events) {
    if (event.fatal && result.stopped_at) outcome.fatal = event;
  }
  return outcome;
}

}  // namespace dlsim::sim
