// SPDX-License-Identifier: Apache-2.0
// A run's outcome as it grows, step by step.
#pragma once

#include <cstdint>

#include "dlsim/sim/sweep.h"
#include "sim/sweep/step_answer.h"

namespace dlsim {

class OutcomeSum {
 public:
  // Adds a step: the scale that it used, the scale after it, whether it was skipped.
  void Add(int64_t step, double scale, double next_scale, bool skipped, const StepAnswer& answer) {
    if (steps_++ == 0) min_scale_ = max_scale_ = scale;
    min_scale_ = scale < min_scale_ ? scale : min_scale_;
    max_scale_ = scale > max_scale_ ? scale : max_scale_;
    final_scale_ = next_scale;
    nonfinite_steps_ += !answer.verdict.finite;
    hopeless_steps_ += !answer.verdict.lower_scale_helps;
    exact_ &= answer.exact;
    known_ &= answer.verdict.certain;
    underflow_ += answer.underflow;
    subnormal_ += answer.subnormal;
    overflow_ += answer.overflow;
    nonfinite_outputs_ += answer.nonfinite_outputs;
    underflow_squares_ += answer.underflow_squares;
    AddLoss(skipped, answer);
    if (skipped) {
      ++skipped_steps_;
      longest_skip_run_ = ++skip_run_ > longest_skip_run_ ? skip_run_ : longest_skip_run_;
      return;
    }
    skip_run_ = 0;
    if (applied_++ == 0) first_applied_step_ = step;
    underflown_ += answer.energy_lost;
    worst_ = answer.energy_lost > worst_ ? answer.energy_lost : worst_;
  }

  // Returns the outcome; `input` is of the gradients of all its steps.
  SweepOutcome Outcome(const TensorStats& input) const;

 private:
  void AddLoss(bool skipped, const StepAnswer& answer) {
    loss_ += skipped ? 1 : answer.energy_lost;
    // From a step whose outcome is only likely, the run may have gone any other way.
    loss_bracket_.low += !known_ ? 0 : skipped ? 1 : answer.energy_bracket.low;
    loss_bracket_.high += !known_ || skipped ? 1 : answer.energy_bracket.high;
  }

  uint64_t steps_ = 0, skipped_steps_ = 0, nonfinite_steps_ = 0, hopeless_steps_ = 0;
  uint64_t longest_skip_run_ = 0, skip_run_ = 0, applied_ = 0;
  int64_t first_applied_step_ = 0;
  double final_scale_ = 0, min_scale_ = 0, max_scale_ = 0;
  uint64_t underflow_ = 0, subnormal_ = 0, overflow_ = 0, nonfinite_outputs_ = 0;
  double underflow_squares_ = 0, worst_ = 0, loss_ = 0, underflown_ = 0;
  Bracket<double> loss_bracket_;
  bool exact_ = true;
  bool known_ = true;  // no verdict was only likely
};

}  // namespace dlsim
