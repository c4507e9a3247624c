// SPDX-License-Identifier: Apache-2.0
// Sweeps over steps that are known by their histograms only, wherever they come from.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "dlsim/sim/sweep.h"

namespace dlsim {

struct TotalsSource {
  const HistogramEdges& edges;
  size_t step_count = 0;
  std::function<ProfileTotals(size_t i)> load_totals;
  std::function<ProfileStep(size_t i)> load_step;  // only called if the totals do not suffice
};

// Returns one outcome per run, in order. Throws Error (exit code 2) for stochastic rounding.
std::vector<SweepOutcome> SweepTotals(const TotalsSource& source, std::vector<ReplayRun> runs,
                                      const SweepOptions& options);

}  // namespace dlsim
