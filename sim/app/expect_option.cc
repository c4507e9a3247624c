// SPDX-License-Identifier: Apache-2.0
#include "sim/app/expect_option.h"

#include <fnmatch.h>

#include <algorithm>
#include <string_view>

#include "dlsim/error.h"
#include "sim/base/caller.h"
#include "sim/base/suggest.h"

namespace dlsim::sim {

void VisitExpect(OptionRows& option, std::vector<Expectation>& expectations,
                 const std::string& example) {
  const auto read = [&expectations](const std::string& text) {
    expectations.push_back(ParseExpectation(text, kExpectOption));
  };
  option.Group(kOutputGroup);
  option.Read(kExpectOption, read, "EXPRESSION",
              "Check a figure of the result, such as '" + example +
                  "'; repeatable; if it is not so, exit with code 1 and a line on standard error",
              {}, Takes::kSeveral);
}

void RequireFigures(std::span<const Expectation> expectations, std::span<const Figure> figures,
                    const std::string& what) {
  for (const Expectation& expectation : expectations) {
    if (!expectation.subject.empty()) {
      throw UsageError(kExpectOption, what + " has no runs to choose from", "a figure alone",
                       Quoted(expectation.text));
    }
    RequireFigure(expectation, FigureNames(figures), kExpectOption);
  }
}

bool IsAbout(const Expectation& expectation, const std::string& run) {
  return expectation.subject.empty() || fnmatch(expectation.subject.c_str(), run.c_str(), 0) == 0;
}

void RequireSubject(const Expectation& expectation, const std::vector<std::string>& runs,
                    const std::string& problem) {
  if (std::ranges::any_of(runs, [&](const auto& run) { return IsAbout(expectation, run); })) return;
  const std::vector<std::string_view> known(runs.begin(), runs.end());
  throw UsageError(kExpectOption, WithSuggestion(problem, expectation.subject, known), OneOf(known),
                   Quoted(expectation.subject));
}

std::vector<ExpectationOutcome> CheckExpectations(std::span<const Expectation> expectations,
                                                  std::span<const Figure> figures) {
  std::vector<ExpectationOutcome> outcomes;
  for (const Expectation& expectation : expectations) {
    outcomes.push_back(CheckExpectation(expectation, "", figures));
  }
  return outcomes;
}

int ReportOutcomes(std::span<const ExpectationOutcome> outcomes) {
  int exit_code = 0;
  for (const ExpectationOutcome& outcome : outcomes) {
    if (outcome.holds) continue;
    CurrentCaller().Say(OutcomeText(outcome));
    exit_code = static_cast<int>(ErrorKind::kCheckFailed);
  }
  return exit_code;
}

}  // namespace dlsim::sim
