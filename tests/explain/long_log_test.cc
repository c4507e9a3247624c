// SPDX-License-Identifier: Apache-2.0
// Logs of more lines than one thread reads at a time, and of more steps than the search may take at
// least.
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

TEST(LongLog, PartsThatThreadsReadAreOneLog) {
  const std::string filler = "| something else  | 0.5 |\n";
  constexpr size_t kFillers = 50'000;  // more than a part
  std::string text;
  for (const char* number : {"10", "20", "30"}) {
    text += "| lg_loss_scale   | 16.0 |\n";
    for (size_t i = 0; i < kFillers; ++i) text += filler;
    text += std::string("| step            | ") + number + " |\n";
  }
  const TempDir dir;
  const std::array logs = {dir.Write("run.log", text)};
  const LogEvents log = ReadLogs(logs);
  ASSERT_EQ(log.events.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(log.events[i].number, 10 * (i + 1));
    EXPECT_EQ(log.events[i].line, (i + 1) * (kFillers + 2));
  }
}

TEST(LongLog, GoingBackAgainAndAgainLeavesTheStretchesOfTheLastTime) {
  const std::string run =
      "INFO fairseq2 - Overflow detected at step 3, ignoring gradient, decreasing loss scale from "
      "1.04858e+06 to 524288.\n"
      "INFO fairseq2.recipe - Train Metrics (step 20) - Loss: 4.2 | grad_scale: 524288\n"
      "INFO fairseq2.recipe - Train Metrics (step 40) - Loss: 4.0 | grad_scale: 524288\n";
  const auto path_of = [&](size_t times) {
    std::string text;
    for (size_t i = 0; i < times; ++i) text += run;
    const TempDir dir;
    const std::array logs = {dir.Write("run.log", text)};
    return BuildPath(ReadLogs(logs));
  };
  EXPECT_EQ(path_of(100).stretches.size(), path_of(2).stretches.size());
}

}  // namespace
}  // namespace dlsim::sim
