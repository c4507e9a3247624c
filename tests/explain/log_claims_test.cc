// SPDX-License-Identifier: Apache-2.0
// What a log does not print is not claimed, and what it prints twice counts once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dlsim/error.h"
#include "tests/support/explain_text.h"

namespace dlsim::sim {
namespace {

using testing::Contains;
using testing::HasSubstr;

std::string Megatron(const std::string& iteration, const std::string& scale) {
  return " iteration " + iteration +
         "/ 9000 | elapsed time per iteration (ms): 1.0 | loss scale: " + scale +
         " | number of skipped iterations: 0 |\n";
}

std::string GuidedTable(const std::string& step, const std::string& log2_scale) {
  return "| grad_norm     | 0.1 |\n| lg_loss_scale | " + log2_scale +
         "     |\n| loss          | 1 |\n" + "| step          | " + step + "  |\n-------\n";
}

struct Claim {
  std::string log;
  int64_t steps, skipped;
  SkipKind kind;
  std::string note;  // "" = none is expected
};

TEST(LogClaims, CountOverflowsOnce) {
  const std::string marian =
      "Seen NaN/Inf after 3 gradient updates. Reduced cost-scaling factor to ";
  const Claim kClaims[] = {
      // Two stacks about one overflow.
      {"Found inf or nan, current scale is: 32768.0, decrease to: 32768.0*0.5\n"
       "[WARNING] - optimizer not run, scale_before: 32768.0, scale_after: 16384.0\n"
       "Found inf or nan, current scale is: 16384.0, decrease to: 16384.0*0.5\n"
       "[WARNING] - optimizer not run, scale_before: 16384.0, scale_after: 8192.0\n",
       2, 2, SkipKind::kWarmUp, ""},
      // The message and the line of the same step, which shows the next scale.
      {"Loss scaler reducing loss scale to 32768.0\nstep: 1 loss_scale: 32768\n"
       "Loss scaler reducing loss scale to 16384.0\nstep: 2 loss_scale: 16384\n",
       2, 2, SkipKind::kWarmUp, ""},
      // Ranks of a stack that prints its growths; without them the scale cannot fall twice to 2^15.
      {"Overflow occurs, the loss scale is adjusted to 32768.0\n"
       "Overflow occurs, the loss scale is adjusted to 32768.0\n"
       "Overflow occurs, the loss scale is adjusted to 16384.0\n",
       3, 3, SkipKind::kWarmUp, "assumed to be that of other ranks"},
      // Updates count applied steps: a fall is a step that none of them counts.
      {"num_updates=100, loss_scale=16\nnum_updates=200, loss_scale=16\nnum_updates=300, "
       "loss_scale=4\n",
       302, 2, SkipKind::kSteady, "each fall of the scale is assumed to be an overflow"},
      {marian + "128\n" + marian + "64\n", 2, 2, SkipKind::kWarmUp, ""},
      {marian + "minimum 8. Pruning NaNs now.\n", 1, 1, SkipKind::kWarmUp, ""},
      {"Seen NaN/Inf in gradient, skipping update, reducing cost-scaling factor to 64\n", 1, 1,
       SkipKind::kWarmUp, ""},
      // The mean falls in two lines for one overflow between them.
      {GuidedTable("0", "20") + GuidedTable("10", "20") + GuidedTable("20", "19.6") +
           GuidedTable("30", "19"),
       31, 1, SkipKind::kSteady, "counted by its falls"},
      {GuidedTable("0", "20") + GuidedTable("10", "14.5") + GuidedTable("20", "5") +
           GuidedTable("30", "-5"),
       31, 25, SkipKind::kDivergence, "counted by its falls"},
      {GuidedTable("0", "20") + "Found NaN, decreased lg_loss_scale to 19.0\n" +
           GuidedTable("10", "19.5"),
       1, 1, SkipKind::kWarmUp, "messages report each overflow"},
      {"grad_norm,lg_loss_scale,loss,step\n0.1,20.0,1.0,0\n,19.6,1.0,10\n0.1,18.99,1.0,20\n", 21, 1,
       SkipKind::kSteady, "counted by its falls"},
      {"{\"lg_loss_scale\": 20.0, \"step\": 0}\n{\"lg_loss_scale\": 19.0, \"step\": 10}\n", 11, 1,
       SkipKind::kSteady, "counted by its falls"},
  };
  for (const Claim& claim : kClaims) {
    SCOPED_TRACE(claim.log);
    const Explanation found = ExplainText(claim.log);
    EXPECT_EQ(found.skips.steps, claim.steps);
    EXPECT_EQ(found.skips.skipped, claim.skipped);
    EXPECT_EQ(found.skips.kind, claim.kind);
    if (claim.note.empty()) continue;
    EXPECT_THAT(found.path.notes, Contains(HasSubstr(claim.note)));
  }
}

TEST(LogClaims, WhatIsNoRecordOfOneRunIsRefused) {
  for (const std::string& log : {
           std::string("step: 1 loss_scale: nan\nstep: 2 loss_scale: nan\n"),
           std::string("{\"step\": 0, \"loss_scale\": 0, \"loss_scale_window\": 1000}\n"),
           std::string("Namespace(step=10, loss_scale=128.0)\n"),
           std::string("step: 1 kl loss scale: 0.5\nstep: 2 kl loss scale: 0.5\n"),
           std::string("[A] step: 1 loss_scale: 65536\n[B] step: 1 loss_scale: 2048\n"
                       "[A] step: 2 loss_scale: 65536\n[B] step: 2 loss_scale: 2048\n"),
       }) {
    EXPECT_THROW(ExplainText(log), Error) << log;
  }
}

TEST(LogClaims, ALogarithmThatIsNoScaleIsLeftOut) {
  EXPECT_THROW(ExplainText("lg_loss_scale,step\n2000,0\n"), Error);
  const Explanation found = ExplainText("lg_loss_scale,step\n2000,0\n20,10\n19,20\n");
  EXPECT_EQ(found.skips.skipped, 1);
}

TEST(LogClaims, AScaleOf1ThroughoutIsThatOfNoScaler) {
  const Explanation none = ExplainText(Megatron("10", "1.0") + Megatron("20", "1.0"));
  EXPECT_FALSE(none.totals.applied_at_most);
  EXPECT_THAT(none.path.notes, Contains(HasSubstr("the loss scale is 1 throughout")));
  const Explanation scaled = ExplainText(Megatron("10", "2.0") + Megatron("20", "1.0"));
  EXPECT_EQ(scaled.skips.skipped, 1);
}

TEST(LogClaims, AScaleRoundedToZeroIsADivergence) {
  const Explanation found =
      ExplainText("num_updates=100, loss_scale=1.000\nnum_updates=200, loss_scale=0.000\n");
  EXPECT_EQ(found.skips.kind, SkipKind::kDivergence);
}

TEST(LogClaims, ANumberIsReadWholeOrNotAtAll) {
  const Explanation found =
      ExplainText("step: 1,000 loss_scale: 65,536\nstep: 1,001 loss_scale: 32,768.0\n");
  EXPECT_EQ(found.brackets.front().scale, 65536);
  EXPECT_EQ(found.skips.skipped, 1);
  for (const std::string& scale : std::vector<std::string>{"64k", "2^16", "2**16"}) {
    const std::string log = "step: 1 loss_scale: " + scale + "\nstep: 2 loss_scale: " + scale;
    EXPECT_THROW(ExplainText(log + "\n"), Error) << scale;
    EXPECT_THROW(ExplainText("step,loss_scale\n1," + scale + "\n"), Error) << scale;
  }
}

TEST(LogClaims, ATableHasOneSeparator) {
  for (const std::string log : {"step;loss;loss_scale\n1;2,5;65536\n2;2,5;32768\n",
                                "step,loss,loss_scale\n1,2.5,\"65,536\"\n2,2.5,\"32,768\"\n"}) {
    const Explanation found = ExplainText(log);
    EXPECT_EQ(found.brackets.front().scale, 65536) << log;
    EXPECT_EQ(found.skips.skipped, 1) << log;
  }
}

TEST(LogClaims, ALightningBarCountsItsStepsAsFloats) {
  const Explanation found = ExplainText(
      "global_step=500.0, loss_scale=65536.0]\nglobal_step=501.0, loss_scale=32768.0]\n");
  EXPECT_EQ(found.skips.skipped, 1);
}

TEST(LogClaims, AnotherRankThatPrintsOtherMessagesIsNoted) {
  const auto line = [](const std::string& rank, const std::string& scales) {
    return "[deepspeed] OVERFLOW! Rank " + rank +
           " Skipping step. Attempted loss scale: " + scales + "\n";
  };
  const std::string first = "65536, reducing to 32768", second = "32768, reducing to 16384";
  const Explanation same =
      ExplainText(line("0", first) + line("1", first) + line("0", second) + line("1", second));
  EXPECT_THAT(same.path.notes, Contains(HasSubstr("1 more prints the same")));
  const Explanation other =
      ExplainText(line("0", first) + line("1", first) + line("0", second) + line("1", first));
  EXPECT_THAT(other.path.notes, Contains(HasSubstr("1 more prints other messages")));
}

}  // namespace
}  // namespace dlsim::sim
