// SPDX-License-Identifier: Apache-2.0
// The expectations of a replay: which runs and figures they are about, and what came of them.
#pragma once

#include <span>
#include <vector>

#include "sim/advice/advice.h"
#include "sim/base/expectation.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {

// Throws UsageError for a figure that no run has, and for a subject that no run is called: known
// before the runs begin.
void RequireRunFigures(std::span<const Expectation> expectations,
                       std::span<const SimulationRun> runs);

// Checks every run that a subject names, all without one, in the order of the runs. Policies that
// refused their parameters did not run.
std::vector<ExpectationOutcome> CheckRuns(std::span<const Expectation> expectations,
                                          std::span<const SimulationRun> runs,
                                          const Advice& advice);

}  // namespace dlsim::sim
