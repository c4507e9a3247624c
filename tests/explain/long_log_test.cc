// SPDX-License-Identifier: Apache-2.0
// Logs of more steps than the search for a policy may take at least.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "sim/explain/explanation.h"
#include "sim/explain/read_log.h"
#include "tests/support/explain_text.h"

namespace dlsim::sim {
namespace {

// A line for each 10 steps, in which the scale of Megatron-LM doubles each 1000.
ScalePath LongPath() {
  std::string text;
  for (int step = 10; step <= 20'000; step += 10) {
    text += " iteration " + std::to_string(step) +
            "/ 90000 | loss scale: " + std::to_string(1 << (step / 1000)) +
            ".0 | number of skipped iterations: 0 |\n";
  }
  const TempDir dir;
  const std::array logs = {dir.Write("run.log", text)};
  return BuildPath(ReadLogs(logs));
}

TEST(LongLog, TheSearchMayTakeWaysThroughAllOfIt) {
  const ScalePath path = LongPath();
  const auto with = [&](const InferenceLimits& limits) {
    return Explain(path, ParseFormat("fp16"), {}, limits);
  };
  const Explanation decided = with({.work = 10, .own_work = 10});
  ASSERT_FALSE(decided.inference.matches.empty());
  EXPECT_EQ(decided.inference.matches.front().policy->name, "megatron");
  const Explanation undecided = with({.work = 2000, .own_work = 2000, .ways = 0, .own_ways = 0});
  EXPECT_TRUE(undecided.inference.undecided);
  const std::string report = FormatExplanation(undecided);
  EXPECT_EQ(report.find("policy: unknown: not every set of parameters was tried"), 0u) << report;
  EXPECT_NE(report.find("the scale path up to line 400\n"), report.npos) << report;
}

}  // namespace
}  // namespace dlsim::sim
