// SPDX-License-Identifier: Apache-2.0
#include "sim/app/expect_option.h"

#include "dlsim/error.h"
#include "sim/base/caller.h"

namespace dlsim::sim {

void VisitExpect(OptionRows& option, std::vector<Expectation>& expectations,
                 const std::string& example) {
  const auto read = [&expectations](const std::string& text) {
    expectations.push_back(ParseExpectation(text, kExpectOption));
  };
  option.Group(kOutputGroup);
  option.ReadEach(kExpectOption, read, "EXPRESSION",
                  "Require a figure of the result, such as '" + example +
                      "', repeatable: exit code 1, and a line on standard error, if it is "
                      "otherwise");
}

void RequireFigures(std::span<const Expectation> expectations,
                    const std::vector<std::string>& names, const std::string& what) {
  for (const Expectation& expectation : expectations) {
    if (!expectation.subject.empty()) {
      throw UsageError(kExpectOption, what + " has no runs to choose from", "a figure alone",
                       Quoted(expectation.text));
    }
    RequireFigure(expectation, names, kExpectOption);
  }
}

std::vector<ExpectationOutcome> CheckExpectations(std::span<const Expectation> expectations,
                                                  const Json& figures) {
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

Json JsonOutcomes(std::span<const ExpectationOutcome> outcomes) {
  Json list = Json::array();
  for (const ExpectationOutcome& outcome : outcomes) list.push_back(JsonOutcome(outcome));
  return list;
}

}  // namespace dlsim::sim
