// SPDX-License-Identifier: Apache-2.0
// The sweep of a profile.
#include <utility>

#include "sim/profile_source.h"
#include "sim/sweep/totals_sweep.h"

namespace dlsim {

std::vector<SweepOutcome> Sweep(const ProfileReader& profile, std::vector<ReplayRun> runs,
                                const SweepOptions& options) {
  const bool all_tensors = options.tensors == "*" || options.tensors == profile.settings().tensors;
  const auto load_step = [&, all_tensors](size_t i) {
    ProfileStep step = profile.Load(i);
    if (!all_tensors) KeepTensors(options.tensors, step);
    return step;
  };
  const auto load_totals = [&, all_tensors](size_t i) {
    return all_tensors ? profile.LoadTotals(i) : TotalsOf(load_step(i));
  };
  const TotalsSource source = {profile.edges(), profile.step_count(), load_totals, load_step};
  return SweepTotals(source, std::move(runs), options);
}

}  // namespace dlsim
