// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/totals_sweep.h"

#include <optional>
#include <utility>

#include "sim/profile_source.h"
#include "sim/sweep/sweep_runs.h"

namespace dlsim {
namespace {

// The largest sum over micro-steps follows from their histograms by tensor, if at all.
TotalsSuffice WhatSuffices(const TotalsSource& source) {
  if (source.step_count == 0 || source.load_totals(0).gradients.size() <= 1) {
    return TotalsSuffice::kForAbsmax;
  }
  return TotalsSuffice::kNotForAbsmax;
}

void AdvanceTotals(ProfileTotals step, TotalsRuns& runs) {
  const int64_t number = step.step;
  runs.Ask();
  runs.totals().Set(std::move(step));
  runs.Answer();
  runs.Advance(number);
}

}  // namespace

std::vector<SweepOutcome> SweepTotals(const TotalsSource& source, std::vector<ReplayRun> runs,
                                      const SweepOptions& options) {
  SweepRuns sweep(std::move(runs), options.replay, WhatSuffices(source));
  sweep.totals.table().SetEdges(source.edges);
  sweep.totals.totals().SetEdges(source.edges);
  QuestionCache questions;
  for (size_t i = 0; i < source.step_count; ++i) {
    if (sweep.totals.going() == 0 && sweep.general.AllStopped()) break;
    std::optional<ProfileStep> step;
    if (!sweep.general.AllStopped()) step = source.load_step(i);
    if (sweep.totals.going() > 0) {
      AdvanceTotals(step ? TotalsOf(*step) : source.load_totals(i), sweep.totals);
    }
    if (step) {
      const auto opened = OpenProfileStep(std::move(*step), source.edges, questions);
      sweep.general.Advance(*opened, options.replay.step);
    }
    if (options.progress) options.progress(i + 1);
  }
  return sweep.Outcomes();
}

}  // namespace dlsim
