// SPDX-License-Identifier: Apache-2.0
#include "dlsim/sim/sweep.h"
#include "sim/sweep/outcome_sum.h"

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
  double lost = 0, underflown = 0;
  for (const ReplayStep& step : result.steps) {
    const double energy = step.skipped ? 0 : step.gradients.energy_lost();
    lost += step.skipped ? 1.0 : energy;
    underflown += energy;
  }
  const uint64_t applied = outcome.steps - outcome.skipped_steps;
  if (applied > 0) outcome.mean_energy_lost = underflown / static_cast<double>(applied);
  if (!result.steps.empty()) outcome.mean_loss = lost / static_cast<double>(result.steps.size());
  outcome.loss_bracket = {outcome.mean_loss, outcome.mean_loss};
  for (const ScalerEvent& event : result.events) {
    if (event.fatal && result.stopped_at) outcome.fatal = event;
  }
  return outcome;
}

SweepOutcome OutcomeSum::Outcome(const TensorStats& input) const {
  SweepOutcome outcome;
  outcome.steps = steps_;
  outcome.skipped_steps = skipped_steps_;
  outcome.nonfinite_steps = nonfinite_steps_;
  outcome.hopeless_steps = hopeless_steps_;
  outcome.longest_skip_run = longest_skip_run_;
  if (applied_ > 0) outcome.first_applied_step = first_applied_step_;
  outcome.final_scale = final_scale_;
  outcome.min_scale = min_scale_;
  outcome.max_scale = max_scale_;
  outcome.worst_step_energy_lost = worst_;
  TensorStats& gradients = outcome.gradients;
  gradients = input;
  gradients.quantized_sum_of_squares = 0;
  gradients.underflow = underflow_;
  gradients.subnormal = subnormal_;
  gradients.overflow = overflow_;
  gradients.nonfinite_outputs = nonfinite_outputs_;
  gradients.underflow_sum_of_squares = underflow_squares_;
  outcome.exact = exact_ && known_;
  if (applied_ > 0) outcome.mean_energy_lost = underflown_ / static_cast<double>(applied_);
  if (steps_ == 0) return outcome;
  const double steps = static_cast<double>(steps_);
  outcome.mean_loss = loss_ / steps;
  outcome.loss_bracket = {loss_bracket_.low / steps, loss_bracket_.high / steps};
  return outcome;
}

}  // namespace dlsim
