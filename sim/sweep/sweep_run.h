// SPDX-License-Identifier: Apache-2.0
// A sweep with its verdict: include/dlsim/sim/sweep.h has the outcomes alone.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/sweep.h"
#include "sim/sweep/sweep_windows.h"

namespace dlsim::sim {

struct SweepRun {
  std::vector<SweepOutcome> outcomes;  // of the runs, in order
  std::vector<SweepAdvice>
      verdicts;  // one for each way of rounding; none if no windows were searched
};

// As Sweep; the verdicts have their formats in the order of `formats`, and options.tensors is the
// pattern of the tensors that were read.
SweepRun SweepWithVerdicts(const GradientSource& source, std::vector<ReplayRun> runs,
                           const SweepOptions& options, std::span<const std::string> formats);

}  // namespace dlsim::sim
