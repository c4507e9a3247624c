// SPDX-License-Identifier: Apache-2.0
// A run's outcome as it grows, step by step.
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "dlsim/sim/advice.h"
#include "dlsim/sim/sweep.h"
#include "sim/advice/window_consumer.h"
#include "sim/replay/path_step.h"
#include "sim/sweep/step_answer.h"

namespace dlsim::sim {

class OutcomeSum {
 public:
  // `window` of the step; null if windows are not searched.
  void Add(const PathStep& step, const StepAnswer& answer, const StepWindow* window) {
    AddToPath(step, outcome_);
    exact_ &= answer.exact;
    known_ &= answer.outcome.certain;
    TensorStats& gradients = outcome_.gradients;
    gradients.underflow += answer.gradients.underflow;
    gradients.subnormal += answer.gradients.subnormal;
    gradients.overflow += answer.gradients.overflow;
    gradients.nonfinite_outputs += answer.gradients.nonfinite_outputs;
    gradients.underflow_sum_of_squares += answer.gradients.underflow_sum_of_squares;
    if (!step.skipped) {
      underflown_.Add(answer.energy_bracket);
      likely_underflown_ += answer.energy_lost;
    }
    if (window != nullptr) AddLoss(step, *window);
  }

  // Sets the event that ended the run.
  void End(ScalerEvent event) { outcome_.fatal = std::move(event); }

  // Returns the outcome; `input` is of the gradients of all its steps, `steps` are those of the
  // trace.
  SweepOutcome Outcome(const TensorStats& input, size_t steps) const {
    SweepOutcome outcome = outcome_;
    outcome.gradients = WithResults(input);
    outcome.exact = exact_ && known_;
    const auto applied = static_cast<double>(outcome.steps - outcome.skipped_steps);
    if (applied > 0) outcome.mean_energy_lost = likely_underflown_ / applied;
    if (!known_) {  // from a step whose outcome is only likely, the run may have gone any other way
      outcome.energy_bracket = {0, 1};
    } else if (applied > 0) {
      outcome.energy_bracket = {underflown_.low / applied, underflown_.high / applied};
    }
    if (loss_) {
      const double never_run = static_cast<double>(steps - outcome.steps);
      outcome.mean_loss = (*loss_ + never_run) / static_cast<double>(steps);
    }
    return outcome;
  }

 private:
  void AddLoss(const PathStep& step, const StepWindow& window) {
    const bool lost = step.skipped || !step.finite;
    loss_ = loss_.value_or(0) + (lost ? 1 : window.LossAt(step.scale));
    if (lost || window.hopeless) return;
    outcome_.steps_below_window += step.scale < window.lowest_scale();
    outcome_.steps_with_headroom += std::ldexp(step.scale, kHeadroom) <= window.highest_scale;
  }

  // The counters of the inputs, with those of their results that steps answered; the rest is 0.
  TensorStats WithResults(TensorStats gradients) const {
    const TensorStats& results = outcome_.gradients;
    gradients.underflow = results.underflow;
    gradients.subnormal = results.subnormal;
    gradients.overflow = results.overflow;
    gradients.nonfinite_outputs = results.nonfinite_outputs;
    gradients.underflow_sum_of_squares = results.underflow_sum_of_squares;
    gradients.error_sum_of_squares = gradients.quantized_sum_of_squares = 0;
    return gradients;
  }

  SweepOutcome outcome_;
  std::optional<double> loss_;
  Bracket<double> underflown_;    // shares of energy, summed over applied steps ...
  double likely_underflown_ = 0;  // ... and what is likely
  bool exact_ = true;
  bool known_ = true;  // no verdict was only likely
};

}  // namespace dlsim::sim
