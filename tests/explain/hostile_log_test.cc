// SPDX-License-Identifier: Apache-2.0
// Logs that would keep dlsim explain busy, or break it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/sim/policies.h"
#include "sim/explain/policy_fit.h"
#include "tests/support/explain_text.h"

namespace dlsim::sim {
namespace {

constexpr PrintedNumber kStart = {0x1p16, 0x1p16, 0x1p16};
constexpr PrintedNumber kHalf = {0x1p15, 0x1p15, 0x1p15};
constexpr PrintedNumber kQuarter = {0x1p14, 0x1p14, 0x1p14};

// As many ways as are followed at once may take one step more than the limit.
constexpr uint64_t kLimit = 10'000;
constexpr uint64_t kBeyond = 2'000;

LossScaler Torch() { return FindPolicy("torch").make({}, "fp16").scaler; }

TEST(HostileLog, OneOverflowOfUnknownPlaceTakesAFewStepsForEachPlace) {
  ScalePath path;
  path.stretches.push_back({.steps = 1900, .overflows = {{}}, .next = kHalf});
  const PolicyFit fit = FitPolicy(Torch(), path, kLimit);
  EXPECT_FALSE(fit.undecided);
  EXPECT_EQ(fit.explained, 1u);
  EXPECT_EQ(fit.branches, 1900u);
}

TEST(HostileLog, OverflowsOfUnknownPlaceTakeNoMoreStepsThanTheyMay) {
  ScalePath path;
  path.stretches.push_back({.steps = 1900, .overflows = {{}, {}}, .next = kQuarter});
  const PolicyFit cut = FitPolicy(Torch(), path, kLimit);
  EXPECT_TRUE(cut.undecided);
  EXPECT_EQ(cut.explained, 0u);
  EXPECT_LE(cut.work, kLimit + kBeyond);
  const PolicyFit whole = FitPolicy(Torch(), path, 1000 * kLimit);
  EXPECT_FALSE(whole.undecided);
  EXPECT_EQ(whole.explained, 1u);
  EXPECT_EQ(whole.branches, 1899u);
}

// More ways than wait at once for others: their ends differ in the steps since the last growth.
TEST(HostileLog, EachOfManyPlacesIsFollowed) {
  ScalePath path;
  const PrintedNumber grown = {0x1p24, 0x1p24, 0x1p24};  // nine times, and halved once
  path.stretches.push_back({.steps = 20'000, .overflows = {{}}, .next = grown});
  const PolicyFit fit = FitPolicy(Torch(), path, 1000 * kLimit);
  EXPECT_FALSE(fit.undecided);
  EXPECT_EQ(fit.branches, 2000u);
  EXPECT_TRUE(StepsOf(Torch(), path, fit).front().overflow);
}

// More than may be followed are not: the steps that are left are not taken, however many.
TEST(HostileLog, TooManyWaysEndAtOnce) {
  ScalePath path;
  path.stretches.push_back({.steps = 1'000'000'000, .overflows = {{}, {}}, .next = kQuarter});
  const PolicyFit fit = FitPolicy(Torch(), path, uint64_t{1} << 40);
  EXPECT_TRUE(fit.undecided);
  EXPECT_EQ(fit.explained, 0u);
  EXPECT_LE(fit.work, 10'000'000u);
}

// The places of overflows that fit, the first that were found, are those of the smallest numbers,
// wherever the last of them is stated to lie.
TEST(HostileLog, TheFirstPlacesThatFitAreTold) {
  for (const LastStep last : {LastStep::kAny, LastStep::kApplied, LastStep::kSkipped}) {
    ScalePath path;
    path.stretches.push_back({.steps = 40, .overflows = {{}, {}}, .last = last, .next = kQuarter});
    const PolicyFit fit = FitPolicy(Torch(), path, kLimit);
    EXPECT_EQ(fit.branches, last == LastStep::kAny ? 39u : last == LastStep::kApplied ? 38u : 1u);
    std::vector<size_t> places;
    const std::vector<LoggedStep> steps = StepsOf(Torch(), path, fit);
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].overflow) places.push_back(i);
    }
    const size_t second = last == LastStep::kSkipped ? 39 : 1;
    EXPECT_EQ(places, (std::vector<size_t>{0, second}));
  }
}

TEST(HostileLog, CleanStepsOnManyWaysTakeNoMoreStepsThanTheyMay) {
  ScalePath path;
  path.stretches.push_back({.steps = 50, .overflows = {{}}, .next = kHalf});
  path.stretches.push_back({.steps = 1'000'000, .next = kHalf});
  const PolicyFit cut = FitPolicy(Torch(), path, kLimit);
  EXPECT_TRUE(cut.undecided);
  EXPECT_EQ(cut.explained, 1u);
  EXPECT_LE(cut.work, kLimit + kBeyond);
}

TEST(HostileLog, MessagesThatNothingCountsTakeNoMoreStepsThanTheyMay) {
  ScalePath path;
  for (int i = 0; i < 1000; ++i) {
    path.stretches.push_back({.used = kStart, .next = PrintedNumber{0x1p17, 0x1p17, 0x1p17}});
    path.stretches.push_back({.overflows = {{.next = kStart}}});
  }
  const PolicyFit cut = FitPolicy(Torch(), path, kLimit);
  EXPECT_TRUE(cut.undecided);
  EXPECT_LE(cut.work, kLimit + kBeyond);
  const PolicyFit whole = FitPolicy(Torch(), path, 1000 * kLimit);
  EXPECT_FALSE(whole.undecided);
  EXPECT_EQ(whole.explained, path.stretches.size());
}

TEST(HostileLog, JsonOfManyLevelsIsReadAsFarAsItMatters) {
  const size_t levels = 1'000'000;
  const std::string deep = std::string(levels, '[') + std::string(levels, ']');
  const auto record = [&](const std::string& step, const std::string& loss) {
    return "{\"step\": " + step + ", \"loss_scale\": 1024, \"loss\": " + loss + "}";
  };
  const auto steps = [](const std::string& text) { return ExplainText(text).steps.size(); };
  const auto lines = [&](const std::string& loss) {
    return record("1", loss) + "\n" + record("20", "0") + "\n";
  };
  const auto history = [&](const std::string& loss) {
    return "{\"log_history\": [" + record("1", loss) + ", " + record("20", "0") + "]}";
  };
  EXPECT_EQ(steps(lines("0")), 19u);
  EXPECT_EQ(steps(lines(deep)), 19u);
  EXPECT_EQ(steps(history("0")), 19u);
  EXPECT_EQ(steps(history(deep)), 19u);
  EXPECT_THROW(ExplainText(R"({"loss_scale": )" + deep + "}\n"), Error);
}

TEST(HostileLog, AScaleThatCannotDoubleIsTakenAsItIs) {
  const Explanation found = ExplainText("step,loss_scale\n0,1.0e308\n1,1.0e308\n2,1.0e308\n");
  ASSERT_FALSE(found.inference.matches.empty());
  EXPECT_FALSE(found.inference.matches.front().evidence.empty());
}

TEST(HostileLog, TooManyStepsAreRefused) {
  std::string log;
  for (int line = 1; line <= 3; ++line) {
    log += " iteration " + std::to_string(line * 4'000'000) +
           "/ 90000000 | loss scale: 64.0 | number of skipped iterations: 0 |\n";
  }
  try {
    ExplainText(log);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_STREQ(
        error.what(),
        "line 3: step number too far from the first one, expected at most 10000000, got 12000000");
  }
}

}  // namespace
}  // namespace dlsim::sim
