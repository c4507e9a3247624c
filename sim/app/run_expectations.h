// SPDX-License-Identifier: Apache-2.0
// The expectations of a replay: which runs and figures they are about, and what came of them.
#pragma once

#include <span>
#include <vector>

#include "dlsim/scaled_format.h"
#include "sim/advice/advice.h"
#include "sim/base/expectation.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {

// Throws UsageError for a figure that no run and no scaled format has, and for a subject that none
// is called: known before the runs begin.
void RequireRunFigures(std::span<const Expectation> expectations,
                       std::span<const SimulationRun> runs,
                       std::span<const NamedScaledFormat> scaled);

// Checks every run and scaled format that a subject names, all without one, in their order.
// Policies that refused their parameters did not run. Runs and scaled formats are asked for their
// own figures only.
std::vector<ExpectationOutcome> CheckRuns(std::span<const Expectation> expectations,
                                          std::span<const SimulationRun> runs,
                                          const Advice& advice);

}  // namespace dlsim::sim
