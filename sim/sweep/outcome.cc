// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/sweep.h"

namespace dlsim {

SweepOutcome OutcomeOf(const ReplayResult& result) {
  const ReplaySummary summary = Summarize(result);
  SweepOutcome outcome;
  outcome.steps = summary.steps;
  outcome.skipped_steps = summary.skipped_steps;
  outcome.nonfinite_steps = summary.nonfinite_steps;
  outcome.hopeless_steps = summary.hopeless_steps;
  outcome.longest_skip_run = summary.longest_skip_run;
  outcome.first_applied_step = summary.first_applied_step;
  outcome.final_scale = summary.final_scale;
  outcome.min_scale = summary.min_scale;
  outcome.max_scale = summary.max_scale;
  outcome.worst_step_energy_lost = summary.worst_step_energy_lost;
  outcome.gradients = summary.gradients;
  outcome.gradients.quantized_sum_of_squares = 0;
  double lost = 0;
  for (const ReplayStep& step : result.steps) {
    lost += step.skipped ? 1.0 : step.gradients.energy_lost();
  }
  if (!result.steps.empty()) outcome.mean_loss = lost / static_cast<double>(result.steps.size());
  outcome.loss_bracket = {outcome.mean_loss, outcome.mean_loss};
  for (const ScalerEvent& event : result.events) {
    if (event.fatal && result.stopped_at) outcome.fatal = event;
  }
  return outcome;
}

}  // namespace dlsim
