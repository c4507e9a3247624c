// SPDX-License-Identifier: Apache-2.0
// What a user requires of the figures of a result, such as skipped_steps<=3: the gates of --expect.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/base/rows.h"

namespace dlsim::sim {

enum class Relation : uint8_t { kLess, kAtMost, kGreater, kAtLeast, kEqual, kUnequal };

// One requirement: [SUBJECT:]FIGURE OP NUMBER.
struct Expectation {
  std::string text;     // as given
  std::string subject;  // a pattern (fnmatch) of what it is about; empty: everything
  std::string figure;   // such as skipped_steps or activations.mean_harm
  Relation relation = Relation::kAtMost;
  std::optional<double> limit;  // nothing = `none`: the figure has no value
};

// Reads an expectation; blanks around its parts do not count. Throws UsageError, which names
// `place`.
Expectation ParseExpectation(const std::string& text, const std::string& place);

// Returns whether a figure is as required. NaN, and a figure that has no value, satisfy no
// comparison but `!=`; of those without a value only `!= NUMBER` fails, too.
bool Holds(const Expectation& expectation, const std::optional<double>& found);

// Returns the names of figures.
std::vector<std::string> FigureNames(std::span<const Figure> figures);

// Throws UsageError that names `place` unless the figure is one of `names`.
void RequireFigure(const Expectation& expectation, const std::vector<std::string>& names,
                   const std::string& place);

// What came of an expectation.
struct ExpectationOutcome {
  Expectation expectation;
  std::string run;  // what was looked at, such as fp16/torch; empty if there is only one thing
  std::optional<double> found;
  bool holds = true;
};

// Checks the figures of one run, or of a whole result.
ExpectationOutcome CheckExpectation(const Expectation& expectation, const std::string& run,
                                    std::span<const Figure> figures);

void Rows(const ExpectationOutcome& of, RowSink& row);
void AddOutcomeKeys(std::vector<KeyTable>& tables);

// Returns "fp16/torch: skipped_steps is 17, expected skipped_steps<=3".
std::string OutcomeText(const ExpectationOutcome& outcome);

}  // namespace dlsim::sim
