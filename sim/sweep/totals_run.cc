// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/totals_run.h"

#include <bit>
#include <utility>

namespace dlsim::sim {

// Clipping changes nothing that an outcome holds.
bool AsksForTotals(const ReplayRun& run, const ReplayOptions& options) {
  return run.rules.granularity == ScaleGranularity::kModel && !run.scaler.looks_ahead() &&
         !run.scaler.histogram_edge() && run.conversion.rounding != Rounding::kStochastic &&
         !run.resume && options.optimizers.empty();
}

TotalsRun::TotalsRun(ReplayRun run, size_t place, OnFatal on_fatal, QuestionTable& table)
    : scaler_(std::move(run.scaler)),
      scale_(scaler_.scale()),
      place_(place),
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

void TotalsRun::Advance(int64_t step, std::span<const StepWindow* const> windows,
                        QuestionTable& table, const TensorStats& input) {
  const StepAnswer& answer = table.At(question_);
  const FiniteOutcome& outcome = answer.outcome;
  ScalerDecision decision = scaler_.Next({.overflow = !outcome.finite, .absmax = answer.absmax});
  const double scale = std::exchange(scale_, scaler_.scale());
  sum_.Add({step, scale, scale_, decision.skip, outcome.finite, outcome.lower_scale_helps,
            answer.energy_lost},
           answer, windows.empty() ? nullptr : windows[place_]);
  if (!decision.event || !decision.event->fatal || on_fatal_ == OnFatal::kContinue) return;
  decision.event->step = step;
  sum_.End(std::move(*decision.event));
  input_ = input;
}

const HistogramEdges& TotalsRuns::Ask(const HistogramEdges* fixed) {
  const auto remembers =
      table_.BeginStep() ? TotalsRun::Remembers::kNothing : TotalsRun::Remembers::kLastQuestion;
  for (TotalsRun& run : runs_) {
    if (!run.stopped()) run.Ask(remembers, table_);
  }
  edges_ = &table_.Edges(fixed);
  return *edges_;
}

void TotalsRuns::Answer(ProfileTotals totals) {
  totals_.Set(std::move(totals), *edges_);
  table_.Answer(totals_);
}

void TotalsRuns::Advance(int64_t step, std::span<const StepWindow* const> windows) {
  input_.Merge(totals_.gradients());
  for (TotalsRun& run : runs_) {
    if (run.stopped()) continue;
    run.Advance(step, windows, table_, input_);
    if (run.stopped()) --going_;
  }
}

}  // namespace dlsim::sim
