// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/totals_sweep.h"

#include <utility>

#include "dlsim/error.h"
#include "sim/sweep/sweep_runs.h"

namespace dlsim {
namespace {

// The largest sum over micro-steps cannot be known from their histograms.
void RequireAbsmax(const QuestionTable& table, const StepTotals& totals) {
  if (totals.parts().size() == 1) return;
  for (const uint32_t index : table.asked()) {
    if (!table.question(index).kind().needs_absmax) continue;
    throw UsageError("profile", "does not hold the largest gradient of a step of micro-steps",
                     "the trace itself for policies that follow it");
  }
}

void RefuseGeneral(std::span<const ReplayRun> runs, const ReplayOptions& options) {
  for (const ReplayRun& run : runs) {
    if (AsksForTotals(run, options)) continue;
    const bool stochastic = run.conversion.rounding == Rounding::kStochastic;
    throw UsageError(stochastic ? "stochastic rounding" : "policy " + run.policy,
                     "looks at single tensors or elements, which a sweep of a profile does not",
                     "the trace itself");
  }
}

}  // namespace

std::vector<SweepOutcome> SweepTotals(const TotalsSource& source, std::vector<ReplayRun> runs,
                                      const SweepOptions& options) {
  RefuseGeneral(runs, options.replay);
  SweepRuns sweep(std::move(runs), options.replay);
  TotalsRuns& totals = sweep.totals;
  totals.table().SetEdges(source.edges);
  totals.totals().SetEdges(source.edges);
  for (size_t i = 0; i < source.step_count && totals.going() > 0; ++i) {
    ProfileTotals step = source.load(i);
    const int64_t number = step.step;
    totals.Ask();
    totals.totals().Set(std::move(step));
    RequireAbsmax(totals.table(), totals.totals());
    totals.Answer();
    totals.Advance(number);
    if (options.progress) options.progress(i + 1);
  }
  return sweep.Outcomes();
}

}  // namespace dlsim
