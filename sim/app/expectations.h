// SPDX-License-Identifier: Apache-2.0
// The option --expect of every command that has it: what is required, of which runs, what came of
// it, and the exit code.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dlsim/scaled_format.h"
#include "sim/advice/advice.h"
#include "sim/app/option_rows.h"
#include "sim/base/expectation.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {

inline constexpr const char* kExpectOption = "--expect";

// The option, whose expectations are read at once; the help shows an example.
void VisitExpect(OptionRows& option, std::vector<Expectation>& expectations,
                 const std::string& example);

// Prints one line on standard error for each that does not hold, and returns the exit code: 1 if
// there is one.
int ReportOutcomes(std::span<const ExpectationOutcome> outcomes);

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
