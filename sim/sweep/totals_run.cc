// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/totals_run.h"

#include <bit>
#include <utility>

namespace dlsim {

// Clipping changes nothing that an outcome holds.
bool AsksForTotals(const ReplayRun& run, const ReplayOptions& options) {
  return run.rules.granularity == ScaleGranularity::kModel && !run.scaler.looks_ahead() &&
         !run.scaler.histogram_edge() && run.conversion.rounding != Rounding::kStochastic &&
         !run.resume && options.optimizers.empty();
}

TotalsRun::TotalsRun(ReplayRun run, OnFatal on_fatal, QuestionTable& table)
    : scaler_(std::move(run.scaler)),
      scale_(scaler_.scale()),
      kind_(table.KindIndex({run.conversion, run.rules.finite_test, scaler_.uses_absmax()})),
      on_fatal_(on_fatal) {}

void TotalsRun::Ask(Remembers remembers, QuestionTable& table) {
  const float scale = static_cast<float>(scale_);
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  if (asked_ && remembers == Remembers::kLastQuestion && bits == asked_bits_) {
    return table.AskAgain(question_);
  }
  question_ = table.Ask(kind_, scale);
  asked_bits_ = bits;
  asked_ = true;
}

void TotalsRun::Advance(int64_t step, QuestionTable& table, const TensorStats& input) {
  const StepAnswer& answer = table.At(question_);
  ScalerDecision decision =
      scaler_.Next({.overflow = !answer.verdict.finite, .absmax = answer.absmax});
  const double scale = std::exchange(scale_, scaler_.scale());
  sum_.Add(step, scale, scale_, decision.skip, answer);
  if (!decision.event || !decision.event->fatal || on_fatal_ == OnFatal::kContinue) return;
  decision.event->step = step;
  fatal_ = std::move(decision.event);
  input_ = input;
}

SweepOutcome TotalsRun::Outcome(const TensorStats& input) const {
  SweepOutcome outcome = sum_.Outcome(input_.value_or(input));
  outcome.fatal = fatal_;
  return outcome;
}

}  // namespace dlsim
