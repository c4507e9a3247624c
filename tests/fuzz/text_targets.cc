// SPDX-License-Identifier: Apache-2.0
// Fuzz targets of expectations and states.
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/format.h"
#include "dlsim/sim/policies.h"
#include "sim/base/expectation.h"
#include "sim/policies/policy.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/target_support.h"

namespace dlsim {

using namespace sim;

namespace {

// Returns the lines up to an empty one, or the end.
std::vector<std::string> Paragraph(std::istringstream& text) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line) && !line.empty();) lines.push_back(line);
  return lines;
}

// The policy of this name; of an unknown one, any, since most mutations of a name are no name.
const PolicyInfo& PolicyOf(std::string_view name) {
  const std::span policies = Policies();
  const auto named = std::ranges::find(policies, name, &PolicyInfo::name);
  if (named != policies.end()) return *named;
  return policies[name.empty() ? 0 : static_cast<uint8_t>(name[0]) % policies.size()];
}

// Overflows at some steps, among them several in a row.
void RunSteps(LossScaler& scaler) {
  for (int i = 0; i < 50; ++i) {
    const bool overflow = i % 7 == 0 || i > 40;
    scaler.Next({.overflow = overflow, .absmax = overflow ? INFINITY : 1e-3f, .below_edge = 10});
  }
}

}  // namespace

int FuzzExpectation(const uint8_t* bytes, size_t size) {
  const std::vector<Figure> figures = {{"skipped_steps", 3},
                                       {"mean_harm", 0.25},
                                       {"window", std::nullopt},
                                       {"activations.mean_harm", HUGE_VAL},
                                       {"underflow", 7}};
  const auto check = [&] {
    const Expectation expectation = ParseExpectation(std::string(TextOf(bytes, size)), "fuzz");
    RequireFigure(expectation, FigureNames(figures), "fuzz");
    Require(!OutcomeText(CheckExpectation(expectation, "run", figures)).empty());
  };
  return RunTarget(check, {ErrorKind::kUsage});
}

int FuzzState(const uint8_t* bytes, size_t size) {
  const auto restore = [&] {
    std::istringstream text{std::string(TextOf(bytes, size))};
    std::string name;
    std::getline(text, name);
    const PolicyInfo& policy = PolicyOf(name);
    const ParameterMap parameters = ResolveParameters(policy, Paragraph(text));
    ConfiguredScaler configured = policy.make(parameters, "fp16");
    RestoreState(Paragraph(text), policy.name, configured);
    RunSteps(configured.scaler);
    Require(!configured.scaler.Checkpoint().empty());
  };
  try {
    return RunTarget(restore, {ErrorKind::kUsage});
  } catch (const PolicyRefusal&) {
    return 0;
  }
}

}  // namespace dlsim
