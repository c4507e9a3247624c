// SPDX-License-Identifier: Apache-2.0
// Logs that start in mid-training, or that go back to before their first line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>

#include "dlsim/error.h"
#include "sim/explain/log_event.h"
#include "sim/explain/log_text.h"
#include "tests/support/explain_text.h"

namespace dlsim::sim {
namespace {

using testing::Contains;
using testing::HasSubstr;

std::string DeepSpeedOverflow(const std::string& used, const std::string& next) {
  return "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: " + used +
         ", reducing to " + next + "\n";
}

std::string DeepSpeedStep(const std::string& step, const std::string& skipped) {
  return "[log_dist] [Rank 0] step=" + step + ", skipped=" + skipped + ", lr=[1e-05]\n";
}

std::string MegatronLine(const std::string& iteration, const std::string& scale,
                         const std::string& skipped) {
  return " iteration " + iteration +
         "/ 9000 | elapsed time per iteration (ms): 1.0 | loss scale: " + scale +
         " | number of skipped iterations: " + skipped + " |\n";
}

TEST(LogStart, OverflowsBeforeTheFirstRecordAreItsLastSteps) {
  const Explanation found =
      ExplainText(DeepSpeedOverflow("65536", "32768") + DeepSpeedOverflow("32768", "16384") +
                  DeepSpeedStep("5020", "57") + DeepSpeedStep("5030", "57"));
  EXPECT_FALSE(found.path.from_start);
  EXPECT_EQ(found.path.first_step, 5019);
  EXPECT_EQ(found.skips.steps, 12);
  EXPECT_EQ(found.skips.skipped, 2);
  ASSERT_FALSE(found.inference.matches.empty());
  EXPECT_EQ(found.inference.matches.front().policy->name, "deepspeed");
  EXPECT_THAT(FormatExplanation(found), HasSubstr("in mid-training"));
}

TEST(LogStart, NumberedOverflowsBeforeTheFirstRecordCount) {
  const Explanation found = ExplainText(
      "Grad overflow on iteration: 5015\nReducing dynamic loss scale from 65536.0 to 32768.0\n" +
      DeepSpeedStep("5020", "8") + DeepSpeedStep("5030", "8"));
  EXPECT_EQ(found.skips.skipped, 1);
  EXPECT_EQ(found.skips.steps, 15);
}

TEST(LogStart, TheFirstRecordCountsItsOwnSkippedSteps) {
  const Explanation found =
      ExplainText(MegatronLine("5010", "8192.0", "3") + MegatronLine("5020", "8192.0", "0") +
                  MegatronLine("5030", "4096.0", "1"));
  EXPECT_EQ(found.path.first_step, 5001);
  EXPECT_EQ(found.skips.steps, 30);
  EXPECT_EQ(found.skips.skipped, 4);
}

TEST(LogStart, MessagesBeyondTheStepsAreLeftOutWithANote) {
  const Explanation found = ExplainText(
      DeepSpeedStep("1", "0") + DeepSpeedOverflow("65536", "32768") +
      DeepSpeedOverflow("32768", "16384") + DeepSpeedStep("2", "1") + DeepSpeedStep("3", "1"));
  EXPECT_EQ(found.skips.steps, 3);
  EXPECT_EQ(found.skips.skipped, 1);
  EXPECT_THAT(found.path.notes, Contains(HasSubstr("more overflow messages than steps")));
}

TEST(LogStart, ARunThatGoesBackToBeforeTheLogBeginsItAnew) {
  const Explanation found =
      ExplainText(MegatronLine("5010", "8192.0", "0") + MegatronLine("5020", "8192.0", "0") +
                  MegatronLine("4010", "4096.0", "0") + MegatronLine("4020", "4096.0", "0") +
                  MegatronLine("4030", "2048.0", "1"));
  EXPECT_EQ(found.path.first_step, 4011);
  EXPECT_EQ(found.skips.steps, 20);
  EXPECT_EQ(found.skips.skipped, 1);
  EXPECT_THAT(found.path.notes, Contains(HasSubstr("the log goes back")));
}

TEST(LogStart, AfterGoingBackTheScaleOfTheCheckpointIsNoFall) {
  const auto line = [](const std::string& iteration, const std::string& scale) {
    return " iteration " + iteration +
           "/ 90 | elapsed time per iteration (ms): 1.0 | loss scale: " + scale + " |\n";
  };
  const Explanation found =
      ExplainText(line("10", "1024.0") + line("20", "1024.0") + line("30", "2048.0") +
                  line("20", "1024.0") + line("30", "2048.0"));
  EXPECT_EQ(found.skips.skipped, 0);
}

std::string Fp16Overflow(int iteration, const std::string& from, const std::string& to) {
  return "Grad overflow on iteration " + std::to_string(iteration) +
         "\nReducing dynamic loss scale from " + from + " to " + to + "\n";
}

std::string Fp16Growth(const std::string& from, const std::string& to) {
  return "No Grad overflow for 4 iterations\nIncreasing dynamic loss scale from " + from + " to " +
         to + "\n";
}

// Each rank prints growths and overflows, and the engine counts steps and skipped ones.
TEST(LogStart, GrowthsOfFp16OptimizerStandAtTheirSteps) {
  const std::string first = Fp16Overflow(1, "8.0", "4.0"), later = Fp16Overflow(12, "16.0", "8.0");
  const std::string up = Fp16Growth("4.0", "8.0"), again = Fp16Growth("8.0", "16.0");
  const Explanation found = ExplainText(
      DeepSpeedStep("0", "0") + first + first + DeepSpeedStep("6", "1") + up + up + up +
      DeepSpeedStep("10", "1") + again + again + later + later + DeepSpeedStep("16", "2"));
  EXPECT_EQ(found.skips.steps, 16);
  EXPECT_EQ(found.skips.skipped, 2);
  EXPECT_TRUE(found.path.from_start);
  ASSERT_FALSE(found.inference.matches.empty());
  const PolicyMatch& match = found.inference.matches.front();
  EXPECT_EQ(match.policy->name, "deepspeed-fp16-optimizer");
  EXPECT_EQ(match.parameters.at("scale_window"), "4");
  ASSERT_EQ(found.brackets.size(), 5U);
  EXPECT_EQ(found.brackets[2].first, 7U);   // 5 clean steps after the overflow of step 1
  EXPECT_EQ(found.brackets[3].first, 11U);  // 4 more
}

// Before 0.17.1 the scale grew a step earlier: the time of a line tells which rule holds.
TEST(LogStart, TheTimeOfALineTellsTheReleaseOfDeepSpeed) {
  const auto first_policy = [](const std::string& time) {
    const std::string stamp = "[" + time + " 10:00:00,000] [INFO] ";
    const Explanation found =
        ExplainText(stamp + DeepSpeedOverflow("65536", "32768") + stamp + DeepSpeedStep("4", "1") +
                    stamp + DeepSpeedStep("8", "1"));
    return std::string(found.inference.matches.at(0).policy->name);
  };
  EXPECT_EQ(first_policy("2025-05-31"), "deepspeed-0.16");
  EXPECT_EQ(first_policy("2025-06-01"), "deepspeed");
  EXPECT_EQ(first_policy("2025.05.31"), "deepspeed");
}

TEST(LogText, NumbersBeyondDoublesAreInfiniteOrZero) {
  EXPECT_EQ(ReadPrinted("1e999")->value, std::numeric_limits<double>::infinity());
  EXPECT_EQ(ReadPrinted("-1e999")->value, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(ReadPrinted("1e-2147483648.5")->value, 0.0);
}

TEST(LogEvent, StepsOfEpochsBeyondAllNumbersAreNoSteps) {
  const auto event = RecognizeMessage(
      "INFO Train: [9007199254740991/300][1/9007199254740991] loss_scale 32768.0000 (1.0)");
  ASSERT_TRUE(event);
  EXPECT_EQ(event->number, std::nullopt);
}

TEST(LogScales, WhatIsNoLossScaleIsRefused) {
  for (const std::string& log : {
           std::string("step: 1, scale: 16\nstep: 2, scale: 16\n"),          // of an adapter
           std::string("iter 1: scale=128\niter 2: scale=256\n"),            // of an image
           std::string("step,train/scale\n0,14.2857\n100,14.5\n"),           // of logits
           std::string("{\"step\": 1, \"scale\": 1.0}\n"),                   // nothing says of what
           std::string("step 100, loss_scale: 0.1\n"),                       // 2^-3 or 2^-4
           MegatronLine("1", "-1.0", "0") + MegatronLine("2", "-1.0", "0"),  // there is none
       }) {
    EXPECT_THROW(ExplainText(log), Error) << log;
  }
  EXPECT_EQ(ExplainText("step,scale\n0,65536\n1,32768\n2,32768\n").skips.skipped, 1);
}

TEST(LogScales, TwoEnginesThatCountTheSameStepsAreRefused) {
  EXPECT_THROW(
      ExplainText(DeepSpeedOverflow("65536", "32768") + DeepSpeedStep("10", "2") +
                  DeepSpeedStep("10", "1") + DeepSpeedStep("20", "2") + DeepSpeedStep("20", "1")),
      Error);
  // A training that was resumed after step 20 counts it twice.
  const Explanation resumed =
      ExplainText(DeepSpeedOverflow("65536", "32768") + DeepSpeedStep("10", "1") +
                  DeepSpeedStep("20", "1") + DeepSpeedStep("20", "1") + DeepSpeedStep("30", "1"));
  EXPECT_EQ(resumed.skips.skipped, 1);
}

TEST(LogScales, AScaleOfZeroIsADivergenceWithoutBounds) {
  const Explanation found = ExplainText(
      "Global Step: 20 Fp16 Grad Scale: 0\n"
      "Global Step: 30 Fp16 Grad Scale: 0\n");
  EXPECT_EQ(found.skips.kind, SkipKind::kDivergence);
  EXPECT_FALSE(found.totals.applied_at_most);
}

}  // namespace
}  // namespace dlsim::sim
