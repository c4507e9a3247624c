// SPDX-License-Identifier: Apache-2.0
// The replay of a profile equals that of its trace, counter for counter; what a profile cannot know
// is within its brackets.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dlsim/sim/policies.h"
#include "tests/support/profiled_trace.h"
#include "tests/support/small_replay.h"
#include "tests/support/special_values.h"
#include "tests/support/test_traces.h"

namespace dlsim::sim {
namespace {

const std::vector<std::string> kAllTraces = {kTraces + "cnn-digits", kAccumulated, kSingle,
                                             kTraces + "reg-diabetes-cut"};

ReplayRun RunAt(const NamedFormat& format, float scale, FiniteTest test = FiniteTest::kGlobalNorm) {
  ReplayRun run = StaticRun(format.format, scale, {.finite_test = test});
  run.format = format.name;
  run.policy = "static " + std::to_string(scale);
  return run;
}

TEST(ProfileReplay, EqualsThatOfTheTraceAtEveryScaleOfTheLadder) {
  const Ladder ladder = DefaultLadder();
  std::vector<ReplayRun> runs;
  for (const NamedFormat& format : ladder.formats) {
    for (const float scale : ladder.scales) runs.push_back(RunAt(format, scale));
  }
  for (const std::string& path : kAllTraces) {
    SCOPED_TRACE(path);
    const Compared compared = CompareReplays(OpenTrace({path}), runs);
    EXPECT_GT(compared.steps, runs.size());
    EXPECT_EQ(compared.inexact, 0u);
    EXPECT_EQ(compared.uncertain, 0u);
  }
}

TEST(ProfileReplay, EqualsThatOfTheTraceInEveryMode) {
  const Ladder ladder = DefaultLadder();
  std::vector<ReplayRun> runs;
  for (const NamedFormat& format : ladder.formats) {
    for (size_t s = 3; s < ladder.scales.size(); s += 51) {
      for (const Rounding rounding : ladder.roundings) {
        for (const Subnormals subnormals : ladder.subnormals) {
          for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
            ReplayRun run = RunAt(format, ladder.scales[s], FiniteTest::kElementwise);
            run.conversion = {format.format, rounding, overflow, subnormals};
            runs.push_back(run);
          }
        }
      }
    }
  }
  for (const std::string& path : {kAccumulated, kSingle}) {
    SCOPED_TRACE(path);
    const Compared compared = CompareReplays(OpenTrace({path}), runs);
    EXPECT_EQ(compared.inexact, 0u);
    EXPECT_EQ(compared.uncertain, 0u);
  }
}

TEST(ProfileReplay, LeadsEveryPolicyAlongTheSamePath) {
  const SimulationRequest request = {.formats = {"fp16", "bf16", "cb16"},
                                     .policies = {"all"},
                                     .settings = {},
                                     .conversion = {},
                                     .finite_test = {}};
  std::vector<ReplayRun> runs;
  for (const SimulationRun& run : PrepareRuns(request)) {
    if (run.start) runs.push_back(*run.start);
  }
  for (const std::string& path : kAllTraces) {
    SCOPED_TRACE(path);
    const TraceReader trace = OpenTrace({path});
    const ProfiledTrace profile(trace, DefaultEdges());
    const std::vector<ReplayResult> got = Replay(profile, runs, {});
    const std::vector<ReplayResult> expected = Replay(trace, runs, {});
    for (size_t r = 0; r < runs.size(); ++r) {
      SCOPED_TRACE(runs[r].format + " " + runs[r].policy);
      const Compared compared = CompareResults(got[r], expected[r]);
      // The sum of micro-steps has a largest element and a histogram that theirs do not tell.
      const bool needs_elements = runs[r].scaler.uses_absmax() || runs[r].scaler.histogram_edge();
      EXPECT_TRUE(needs_elements || compared.uncertain == 0) << compared.uncertain;
    }
  }
}

TEST(ProfileReplay, KnowsTheVerdictAtAnyScale) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> exponent(-60, 120);
  std::vector<ReplayRun> runs;
  for (const char* format : {"fp16", "bf16", "cb16", "fp8-e4m3"}) {
    for (int i = 0; i < 40; ++i) {
      const float scale = std::exp2(exponent(random));
      for (const FiniteTest test : {FiniteTest::kElementwise, FiniteTest::kUnscaledElementwise}) {
        runs.push_back(RunAt(ParseFormat(format), scale, test));
      }
    }
  }
  for (const std::string& path : {kSingle, kTraces + "reg-diabetes-cut"}) {
    SCOPED_TRACE(path);
    const Compared compared = CompareReplays(OpenTrace({path}), runs);
    EXPECT_EQ(compared.uncertain, 0u);
    EXPECT_GT(compared.inexact, 0u);
  }
}

TEST(ProfileReplay, KeepsTheTruthOfOtherFormatsAndScalesWithinItsBrackets) {
  std::vector<ReplayRun> runs;
  for (const char* format : {"fp16", "cb16", "fp8-e4m3", "fp8-e5m2", "dlfloat16"}) {
    for (const float scale : {3.0f, 1e5f, 1e-7f, 12345.678f}) {
      for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
        ReplayRun run = RunAt(ParseFormat(format), scale);
        run.conversion.overflow = overflow;
        run.clipping.max_value = 1e-3;
        runs.push_back(run);
      }
    }
  }
  for (const std::string& path : kAllTraces) {
    SCOPED_TRACE(path);
    EXPECT_GT(CompareReplays(OpenTrace({path}), runs).inexact, 0u);
  }
}

TEST(ProfileReplay, KnowsTheNormWithinItsBracketForClipping) {
  std::vector<ReplayRun> runs;
  for (const double limit : {1e-3, 0.5, 1.0, 10.0}) {
    runs.push_back(RunAt(ParseFormat("fp16"), 1024));
    runs.back().clipping.max_norm = limit;
  }
  for (const std::string& path : kAllTraces) {
    SCOPED_TRACE(path);
    CompareReplays(OpenTrace({path}), runs);
  }
}

TEST(ProfileReplay, FollowsTheAccumulationItWasMadeWith) {
  const std::vector<ReplayRun> runs = {RunAt(ParseFormat("fp16"), 1),
                                       RunAt(ParseFormat("bf16"), 1024)};
  ReplayOptions sum_first;
  sum_first.step.accumulation = Accumulation::kSumThenQuantize;
  EXPECT_EQ(CompareReplays(OpenTrace({kAccumulated}), runs, sum_first).inexact, 0u);
  ReplayOptions by_two;
  by_two.accumulate_steps = 2;
  EXPECT_EQ(CompareReplays(OpenTrace({kSingle}), runs, by_two).inexact, 0u);
}

TEST(ProfileReplay, OfSomeTensorsEqualsThatOfATraceReadSo) {
  TraceOptions options;
  options.tensors = "*weight*";
  const TraceReader all = OpenTrace({kSingle}), some = OpenTrace({kSingle}, options);
  const std::vector<ReplayRun> runs = {RunAt(ParseFormat("fp16"), 1024)};
  const ProfiledTrace profile(all, DefaultEdges(), {}, options.tensors);
  const Compared compared =
      CompareResults(Replay(profile, runs, {}).front(), Replay(some, runs, {}).front());
  EXPECT_EQ(compared.inexact, 0u);
}

TEST(ProfileReplay, RefusesStochasticRounding) {
  ReplayRun run = RunAt(ParseFormat("fp16"), 1);
  run.conversion.rounding = Rounding::kStochastic;
  const TraceReader trace = OpenTrace({kSingle});
  EXPECT_THROW(Replay(ProfiledTrace(trace, DefaultEdges()), {run}, {}), Error);
}

class SmallProfileTest : public SmallReplayTest {
 protected:
  ReplayStep StepOf(const ReplayRun& run, const ReplayOptions& options = {}) {
    const TraceReader trace = Open();
    const ProfiledTrace profile(trace, DefaultEdges(), options);
    ReplayResult result = Replay(profile, {run}, options).front();
    CompareResults(result, Replay(trace, {run}, options).front());
    return result.steps.front();
  }
};

// bf16 rounds 0x1.01p+63 to 0x1p+63 or 0x1.02p+63: the norm's limit is between.
TEST_F(SmallProfileTest, SaysThatTheNormIsTooNearToItsLimit) {
  WriteStep(0, {FloatTensor("a.grad", {0x1.6ap63f, 0x1.6ap63f, 0x1.02p59f})});
  const ReplayStep near = StepOf(StaticRun(kBf16, 1, {.finite_test = FiniteTest::kGlobalNorm}));
  EXPECT_FALSE(near.uncertain->certain);
  EXPECT_LT(near.uncertain->grad_norm.low, 0x1p64);
  EXPECT_GT(near.uncertain->grad_norm.high, 0x1p64);
  EXPECT_TRUE(StepOf(StaticRun(kBf16, 1)).uncertain->certain);
}

TEST_F(SmallProfileTest, SumsMicroStepsOfWhichOneHasValuesExactly) {
  dir_.Write("step-0.micro-0.safetensors", BuildSafetensors({FloatTensor("a.grad", {1e38f, 3})}));
  dir_.Write("step-0.micro-1.safetensors", BuildSafetensors({FloatTensor("a.grad", {0, 0})}));
  EXPECT_TRUE(StepOf(StaticRun(kBf16)).uncertain->certain);
}

TEST_F(SmallProfileTest, CannotTellWhetherTheSumOfMicroStepsOverflows) {
  dir_.Write("step-0.micro-0.safetensors", BuildSafetensors({FloatTensor("a.grad", {3e38f, 3})}));
  dir_.Write("step-0.micro-1.safetensors", BuildSafetensors({FloatTensor("a.grad", {3, 3e38f})}));
  EXPECT_FALSE(StepOf(StaticRun(kBf16)).uncertain->certain);
  dir_.Write("step-0.micro-1.safetensors", BuildSafetensors({FloatTensor("a.grad", {1, 1e37f})}));
  EXPECT_TRUE(StepOf(StaticRun(kBf16)).uncertain->certain);
}

TEST_F(SmallProfileTest, SeesASingleElementThatFails) {
  WriteStep(0, {FloatTensor("a.grad", {kInf, 1}), FloatTensor("b.grad", {65519.0f, -65520.0f})});
  const ReplayStep at_one = StepOf(StaticRun(kFp16));
  EXPECT_EQ(at_one.cause, Cause::kInput);
  EXPECT_EQ(at_one.gradients.overflow, 1u);
  const ReplayStep elsewhere = StepOf(StaticRun(kFp16, 1.00001f));
  EXPECT_GE(elsewhere.gradients.overflow, 1u);
}

TEST_F(SmallProfileTest, FollowsScalesThatVanish) {
  WriteStep(0, {FloatTensor("a.grad", {0, 1, -2e-30f})});
  for (const float scale : {0.0f, 1e-45f, 1e-40f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    for (const FiniteTest test : {FiniteTest::kElementwise, FiniteTest::kGlobalNorm,
                                  FiniteTest::kScaledNorm, FiniteTest::kSum}) {
      StepOf(StaticRun(kBf16, scale, {.finite_test = test}));
    }
  }
}

}  // namespace
}  // namespace dlsim::sim
