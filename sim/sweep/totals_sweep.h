// SPDX-License-Identifier: Apache-2.0
// Sweeps over steps that are known by their totals only, wherever they come from.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "sim/sweep/sweep.h"

namespace dlsim {

struct TotalsSource {
  const HistogramEdges& edges;
  size_t step_count = 0;
  std::function<ProfileTotals(size_t i)> load;
};

// Returns one outcome per run, in order. Throws Error (exit code 2) for a run that asks for more.
std::vector<SweepOutcome> SweepTotals(const TotalsSource& source, std::vector<ReplayRun> runs,
                                      const SweepOptions& options);

}  // namespace dlsim
