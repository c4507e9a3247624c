// SPDX-License-Identifier: Apache-2.0
// A run's outcome as it grows, step by step.
#pragma once

#include <algorithm>
#include <utility>

#include "dlsim/sim/sweep.h"
#include "sim/sweep/step_answer.h"

namespace dlsim::sim {

class OutcomeSum {
 public:
  void Add(const PathStep& step, const StepAnswer& answer) {
    outcome_.AddToPath(step);
    exact_ &= answer.exact;
    known_ &= answer.verdict.certain;
    TensorStats& gradients = outcome_.gradients;
    gradients.underflow += answer.underflow;
    gradients.subnormal += answer.subnormal;
    gradients.overflow += answer.overflow;
    gradients.nonfinite_outputs += answer.nonfinite_outputs;
    gradients.underflow_sum_of_squares += answer.underflow_squares;
    loss_ += step.skipped ? 1 : answer.energy_lost;
    // From a step whose outcome is only likely, the run may have gone any other way.
    loss_bracket_.low += !known_ ? 0 : step.skipped ? 1 : answer.energy_bracket.low;
    loss_bracket_.high += !known_ || step.skipped ? 1 : answer.energy_bracket.high;
    if (!step.skipped) underflown_ += answer.energy_lost;
  }

  // Sets the event that ended the run.
  void End(ScalerEvent event) { outcome_.fatal = std::move(event); }

  // Returns the outcome; `input` is of the gradients of all its steps.
  SweepOutcome Outcome(const TensorStats& input) const {
    SweepOutcome outcome = outcome_;
    TensorStats& gradients = outcome.gradients;
    gradients.elements = input.elements;
    gradients.zeros = input.zeros;
    gradients.nan = input.nan;
    gradients.inf = input.inf;
    gradients.absmax = input.absmax;
    gradients.sum_of_squares = input.sum_of_squares;
    outcome.exact = exact_ && known_;
    const double steps = static_cast<double>(outcome.steps);
    const double applied = steps - static_cast<double>(outcome.skipped_steps);
    if (applied > 0) outcome.mean_energy_lost = underflown_ / applied;
    if (outcome.steps == 0) return outcome;
    outcome.mean_loss = loss_ / steps;
    outcome.loss_bracket = {loss_bracket_.low / steps, loss_bracket_.high / steps};
    return outcome;
  }

 private:
  SweepOutcome outcome_;
  double loss_ = 0, underflown_ = 0;
  Bracket<double> loss_bracket_;
  bool exact_ = true;
  bool known_ = true;  // no verdict was only likely
};

}  // namespace dlsim::sim
