// SPDX-License-Identifier: Apache-2.0
// The sweep of a profile.
#include <utility>

#include "sim/sweep/totals_sweep.h"

namespace dlsim {

std::vector<SweepOutcome> Sweep(const ProfileReader& profile, std::vector<ReplayRun> runs,
                                const SweepOptions& options) {
  const TotalsSource source = {profile.edges(), profile.step_count(),
                               [&](size_t i) { return profile.LoadTotals(i); }};
  return SweepTotals(source, std::move(runs), options);
}

}  // namespace dlsim
