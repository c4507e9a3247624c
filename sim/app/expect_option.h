// SPDX-License-Identifier: Apache-2.0
// The option --expect of every command that has it: what is required, and the exit code.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/app/option_rows.h"
#include "sim/base/expectation.h"

namespace dlsim::sim {

inline constexpr const char* kExpectOption = "--expect";

// The option, whose expectations are read at once; the help shows an example.
void VisitExpect(OptionRows& option, std::vector<Expectation>& expectations,
                 const std::string& example);

// Throws UsageError for an expectation that chooses runs, of which `what` (such as "a diff") has
// none, and for one whose figure is not among `figures`.
void RequireFigures(std::span<const Expectation> expectations, std::span<const Figure> figures,
                    const std::string& what);

// Returns whether the subject, a pattern or nothing, names a run.
bool IsAbout(const Expectation& expectation, const std::string& run);

// Throws UsageError with this problem for a subject that names none of the runs.
void RequireSubject(const Expectation& expectation, const std::vector<std::string>& runs,
                    const std::string& problem);

// Checks the figures of a result that is one.
std::vector<ExpectationOutcome> CheckExpectations(std::span<const Expectation> expectations,
                                                  std::span<const Figure> figures);

// Prints one line on standard error for each that does not hold, and returns the exit code: 1 if
// there is one.
int ReportOutcomes(std::span<const ExpectationOutcome> outcomes);

}  // namespace dlsim::sim
