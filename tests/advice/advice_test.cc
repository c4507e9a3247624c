// SPDX-License-Identifier: Apache-2.0
// Windows against all scales one by one, and the verdicts on made and real traces.
#include "sim/advice/advice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "sim/replay/harm.h"
#include "sim/replay/step_sources.h"
#include "tests/support/small_replay.h"
#include "tests/support/special_values.h"
#include "tests/support/tables_of.h"
#include "tests/support/test_traces.h"

namespace dlsim::sim {
namespace {

Advice AdviceOf(const StepSource& source, const std::vector<std::string>& formats) {
  return AdviseOn(source, {.formats = formats});
}

// The lowest and the highest exponent of a step's window, by converting at each.
std::pair<int, int> WindowByAsking(const Step& step, const Format& format) {
  const std::vector<TensorStats> inputs = step.Inputs();
  const CountedGradients counted(step, NoiseFinder().Find(step, inputs));
  int low = kHighestWindowExponent + 1, high = kLowestWindowExponent - 1;
  int channel_low = low;
  for (int exponent = kLowestWindowExponent; exponent <= kHighestWindowExponent; ++exponent) {
    const auto answer = step.Ask({.conversion = {format}, .scale = std::ldexp(1.0f, exponent)});
    bool finite = true;
    for (const TensorAnswer& tensor : *answer) finite &= tensor.total.nonfinite_outputs == 0;
    if (!finite) break;
    high = exponent;
    const HarmOverTensors grads = HarmOver(counted.grads.all, *answer);
    const HarmOverTensors activations = HarmOver(counted.act_grads.all, *answer);
    const double limit = HarmLimit({format}, activations.tensors == 0);
    if (low > exponent && grads.mean <= limit && activations.mean <= limit) low = exponent;
    const double quantum = *SmallestQuantum({format}, std::ldexp(1.0, exponent));
    const auto of_channels = [&](Role role) {
      return ChannelHarmOver(counted.Of(role), step, quantum).mean;
    };
    const bool keeps = of_channels(Role::kGrad) <= kRowHarmThreshold &&
                       of_channels(Role::kActGrad) <= kFeatureHarmThreshold;
    if (keeps) channel_low = std::min(channel_low, exponent);
  }
  return {std::max(low, std::min(channel_low, high - kHeadroom)), high};
}

class WindowsOfTraces : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Traces, WindowsOfTraces,
                         testing::Values("cnn-digits", "lm-kjv-accum-cut", "reg-diabetes-cut"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_P(WindowsOfTraces, AreThoseOfAllScalesOneByOne) {
  const std::vector<std::string> paths = {kTraces + GetParam()};
  const TraceReader trace = TraceReader::Open(paths, {});
  const StepSource source = TraceSteps(trace);
  const Advice found = AdviceOf(source, {"fp16", "bf16", "cb16", "fp8-e4m3"});
  for (size_t i = 0; i < source.step_count; i += 5) {
    const std::unique_ptr<Step> step = source.load(i, {});
    for (const FormatAdvice& windows : found.formats) {
      const auto [low, high] = WindowByAsking(*step, ParseFormat(windows.format).format);
      const StepWindow& window = windows.windows[i];
      SCOPED_TRACE(windows.format + " at step " + std::to_string(window.step));
      EXPECT_EQ(window.high, high);
      EXPECT_EQ(std::min(window.low, high + 1), std::min(low, high + 1));
    }
  }
}

TEST_P(WindowsOfTraces, OfAProfileAreTheSame) {
  const std::vector<std::string> paths = {kTraces + GetParam()};
  const TraceReader trace = TraceReader::Open(paths, {});
  const StepSource steps = TraceSteps(trace);
  const std::vector<std::string> formats = {"fp16", "bf16", "cb16"};
  const std::vector<FormatAdvice> wanted = AdviceOf(steps, formats).formats;
  const std::vector<FormatAdvice> got = AdviceOf(TablesOf(steps), formats).formats;
  for (size_t f = 0; f < formats.size(); ++f) {
    EXPECT_EQ(got[f].safest.value().exponent, wanted[f].safest.value().exponent);
    for (size_t i = 0; i < wanted[f].windows.size(); ++i) {
      const StepWindow &found = got[f].windows[i], &expected = wanted[f].windows[i];
      SCOPED_TRACE(formats[f] + " at step " + std::to_string(expected.step));
      EXPECT_EQ(found.high, expected.high);
      EXPECT_EQ(found.low, expected.low);
      EXPECT_EQ(found.low_tensor, expected.low_tensor);
    }
  }
}

// Against the definition; a sample of one value is no normal one, but of many it nearly is.
TEST(ChannelHarm, IsThatOfANormalSample) {
  std::mt19937_64 random(7);
  for (const double rms : {0.05, 0.1, 0.15, 0.25, 0.4, 0.7, 1.0, 3.0, 20.0}) {
    std::normal_distribution<double> normal(0, rms);
    double errors = 0, squares = 0;
    for (int i = 0; i < 200'000; ++i) {
      const double value = normal(random), error = std::nearbyint(value) - value;
      errors += error * error;
      squares += value * value;
    }
    EXPECT_NEAR(HarmOfNormal(rms), errors / squares, 0.02 * errors / squares) << rms;
  }
}

class AdviceTest : public SmallReplayTest {
 protected:
  void WriteLayers(int step, float parameter, float activation) {
    WriteStep(step, {FloatTensor("a.weight.grad", {parameter, -parameter / 3}),
                     FloatTensor("a.act_grad", {activation, activation / 7})});
  }
  Advice AdviceOn(const std::vector<std::string>& formats) {
    const TraceReader trace = Open();
    return AdviceOf(TraceSteps(trace), formats);
  }
};

TEST_F(AdviceTest, NeedsNoScaleWhereAllFits) {
  for (int step = 0; step < 4; ++step) WriteLayers(step, 1.0f, 0.01f);
  const Advice advice = AdviceOn({"fp16", "bf16"});
  EXPECT_EQ(advice.formats[0].verdict, Verdict::kAsIs);
  EXPECT_EQ(advice.formats[0].scale, 1.0);
  EXPECT_EQ(advice.formats[0].steps_outside, 0u);
  EXPECT_EQ(advice.best, 0u);  // the finer rounding
  EXPECT_FALSE(advice.parameters_only);
  EXPECT_EQ(advice.looked_at, (std::vector{Role::kGrad, Role::kActGrad}));
  ASSERT_EQ(AdviceLines(advice).size(), 3u);
  EXPECT_EQ(
      AdviceLines(advice)[0],
      "fp16  trains as far as gradients show. Safe loss scales: 2^-15 to 2^15 (all 4 steps).");
  EXPECT_EQ(AdviceLines(advice)[1],
            "bf16  trains as far as gradients show, without loss scaling (all 4 steps).");
  EXPECT_EQ(AdviceLines(advice)[2],
            "Based on gradients only: the forward pass was not recorded, and most fp16 failures "
            "happen there.");
}

TEST_F(AdviceTest, SaysWhatWasLookedAt) {
  for (int step = 0; step < 4; ++step) {
    WriteStep(step, {FloatTensor("a.weight.grad", {step == 2 ? INFINITY : 1.0f, 0.5f})});
  }
  const TraceReader trace = Open();
  const StepSource steps = TraceSteps(trace);
  const Advice all = AdviceOf(steps, {"fp16"});
  const Advice chosen = AdviseOn(steps, {.formats = {"fp16"}, .tensors = "*.weight.grad"});
  EXPECT_EQ(all.looked_at, std::vector{Role::kGrad});
  EXPECT_EQ(AdviceLines(all)[0].find("as is"), std::string::npos);
  EXPECT_NE(AdviceLines(all)[1].find("Gradients of activations were not recorded either"),
            std::string::npos)
      << AdviceLines(all)[1];
  EXPECT_NE(AdviceLines(all)[1].find("1 step is not finite as recorded"), std::string::npos);
  EXPECT_NE(AdviceLines(chosen)[1].find("left out by --tensors"), std::string::npos)
      << AdviceLines(chosen)[1];
}

TEST_F(AdviceTest, ZerosSayNothingOfAFormat) {
  for (int step = 0; step < 4; ++step) {
    WriteStep(step, {FloatTensor("a.weight.grad", {step == 1 ? 1.0f : 0.0f, 0.0f})});
  }
  const TraceReader trace = Open();
  const Advice few = AdviceOf(TraceSteps(trace), {"fp16"});
  EXPECT_EQ(few.formats[0].verdict, Verdict::kOverflows);
  EXPECT_EQ(AdviceLines(few)[0],
            "fp16  cannot be judged: only 1 of 4 steps has gradients that are finite and not all "
            "zero.");
  EXPECT_NE(AdviceLines(few)[1].find("3 steps hold nothing but zeros"), std::string::npos)
      << AdviceLines(few)[1];
}

// What underflowed in the recorded run on its way to the parameters is not there to be judged.
TEST_F(AdviceTest, ZeroGradientsOfAllParametersSayNothingOfAFormat) {
  for (int step = 0; step < 4; ++step) {
    WriteStep(step, {FloatTensor("a.weight.grad", {step == 1 ? 1.0f : 0.0f, 0.0f}),
                     FloatTensor("a.act_grad", {1.0f, 0.5f})});
  }
  const TraceReader trace = Open();
  const Advice few = AdviceOf(TraceSteps(trace), {"fp16"});
  EXPECT_EQ(AdviceLines(few)[0],
            "fp16  cannot be judged: only 1 of 4 steps has gradients of parameters that are finite "
            "and not all zero.");
  EXPECT_NE(AdviceLines(few)[1].find("3 steps leave all gradients of parameters zero"),
            std::string::npos)
      << AdviceLines(few)[1];
}

// The gradient of a bias before a normalization: at one step it lies just above the limit.
TEST_F(AdviceTest, NoiseThatVariesBoundsNoWindow) {
  for (int step = 0; step < 6; ++step) {
    const float noise = step == 4 ? 0x1p-11f : 0x1p-18f;
    WriteStep(step, {FloatTensor("a.bias.grad", {noise * 0x1p-9f}),
                     FloatTensor("a.act_grad", {0x1p-9f, -0x1p-10f})});
  }
  const FormatAdvice fp16 = AdviceOn({"fp16"}).formats.front();
  EXPECT_EQ(fp16.noise_tensors, std::vector<std::string>{"a.bias.grad"});
  EXPECT_EQ(fp16.low.tensor, "a.act_grad");
}

TEST_F(AdviceTest, WhatWasNoNoiseBeforeCounts) {
  for (int step = 0; step < 6; ++step) {
    const float bias = step == 4 ? 0x1p-18f : 0x1p-11f;
    WriteStep(step, {FloatTensor("a.bias.grad", {bias * 0x1p-9f}),
                     FloatTensor("a.act_grad", {0x1p-9f, -0x1p-10f})});
  }
  const FormatAdvice fp16 = AdviceOn({"fp16"}).formats.front();
  EXPECT_TRUE(fp16.noise_tensors.empty());
  EXPECT_EQ(fp16.low.tensor, "a.bias.grad");
}

// The energy of the whole gradient lies in the parameters, which lose nothing.
TEST_F(AdviceTest, ActivationsAskForAScale) {
  for (int step = 0; step < 4; ++step) WriteLayers(step, 1.0f, 0x1p-25f);
  const Advice advice = AdviceOn({"fp16"});
  const FormatAdvice& fp16 = advice.formats.front();
  EXPECT_EQ(fp16.verdict, Verdict::kWithScale);
  EXPECT_EQ(fp16.window->high, 15);
  EXPECT_EQ(fp16.scale, 0x1p13);
  EXPECT_EQ(fp16.low.tensor, "a.act_grad");
  EXPECT_EQ(fp16.high.tensor, "a.weight.grad");
  EXPECT_TRUE(fp16.at_risk.empty());
}

TEST_F(AdviceTest, OneSpikeSetsNoScale) {
  for (int step = 0; step < 30; ++step) WriteLayers(step, step == 17 ? 0x1p34f : 1.0f, 0x1p-25f);
  const FormatAdvice fp16 = AdviceOn({"fp16"}).formats.front();
  EXPECT_EQ(fp16.verdict, Verdict::kWithScale);
  EXPECT_EQ(fp16.scale, 0x1p13);
  EXPECT_EQ(fp16.steps_outside, 1u);
}

// It fits at the lowest scale that is safe for the others: no head-room there, and none below.
TEST_F(AdviceTest, ASpikeThatJustFitsSetsNoScaleEither) {
  for (int step = 0; step < 30; ++step) WriteLayers(step, step == 17 ? 0x1p13f : 1.0f, 0x1p-25f);
  const FormatAdvice fp16 = AdviceOn({"fp16"}).formats.front();
  EXPECT_EQ(fp16.window->low, 3);
  EXPECT_EQ(fp16.scale, 0x1p13);
  EXPECT_EQ(fp16.steps_outside, 1u);
}

// The sign of the largest magnitude is not kept.
TEST_F(AdviceTest, DirectedRoundingOverflowsOnEitherSide) {
  WriteStep(0, {FloatTensor("a.weight.grad", {65519.0f, 1.0f})});
  const TraceReader trace = Open();
  const StepSource source = TraceSteps(trace);
  for (const auto& [rounding, high] : {std::pair{Rounding::kNearestEven, 0},
                                       {Rounding::kTowardPositive, -1},
                                       {Rounding::kTowardNegative, -1}}) {
    Conversion conversion;
    conversion.rounding = rounding;
    const Advice advice = AdviseOn(source, {.formats = {"fp16"}, .conversion = conversion});
    EXPECT_EQ(advice.formats.front().windows.front().high, high) << NameOf(rounding);
  }
}

// Toward zero nothing becomes infinite, but what is far beyond the largest value is lost all the
// same.
TEST_F(AdviceTest, AWindowEndsWhereGradientsAreClamped) {
  WriteStep(0, {FloatTensor("a.weight.grad", {65520.0f, 1.0f})});
  const TraceReader trace = Open();
  const StepSource source = TraceSteps(trace);
  for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
    Conversion conversion;
    conversion.rounding = Rounding::kTowardZero;
    conversion.overflow = overflow;
    const Advice advice = AdviseOn(source, {.formats = {"fp16"}, .conversion = conversion});
    EXPECT_EQ(advice.formats.front().windows.front().high, 0) << NameOf(overflow);
  }
}

TEST_F(AdviceTest, NamesWhatIsLostWhereNothingServes) {
  for (int step = 0; step < 10; ++step) WriteLayers(step, 0x1p20f, 0x1p-30f);
  const Advice advice = AdviceOn({"fp16", "bf16"});
  EXPECT_EQ(advice.formats[0].verdict, Verdict::kNoScaleIsSafe);
  EXPECT_FALSE(advice.formats[0].scale);
  EXPECT_FALSE(advice.formats[0].window);
  EXPECT_EQ(advice.formats[0].empty_steps, 10u);
  EXPECT_EQ(advice.best, 1u);
}

// As of a recurrent network that forgets: early calls of its cell hardly count in its gradients.
// Operations of the same kind in a module that is called once have nothing in common.
TEST_F(AdviceTest, CallsCountTogetherWhereNoScaleKeepsEach) {
  for (const bool of_cell : {true, false}) {
    const std::string add = of_cell ? "cell/add" : "block/add";
    for (int step = 0; step < 10; ++step) {
      WriteStep(step, {FloatTensor("cell.act_grad", {1.0f}),
                       FloatTensor("cell.call1.act_grad", {0x1p-45f}),
                       FloatTensor(add + ".act_grad", {1.0f}),
                       FloatTensor(add + ".call1.act_grad", {0x1p-45f})});
    }
    const FormatAdvice fp16 = AdviceOn({"fp16"}).formats.front();
    EXPECT_EQ(fp16.verdict, of_cell ? Verdict::kWithScale : Verdict::kNoScaleIsSafe);
    if (!of_cell) continue;
    EXPECT_EQ(fp16.scale, 0x1p13);
    EXPECT_EQ(fp16.at_risk.size(), 2u);
  }
}

TEST_F(AdviceTest, AScaleMayHaveToMove) {
  for (int step = 0; step < 40; ++step) {
    const float size = step < 20 ? 0x1p30f : 0x1p-30f;
    WriteLayers(step, size, size);
  }
  const FormatAdvice fp16 = AdviceOn({"fp16"}).formats.front();
  EXPECT_EQ(fp16.verdict, Verdict::kWithScale);
  EXPECT_FALSE(fp16.scale);
  EXPECT_EQ(fp16.steps_outside, 20u);
}

TEST_F(AdviceTest, ARunThatDiedOverflows) {
  for (int step = 0; step < 10; ++step) WriteLayers(step, step < 3 ? 1.0f : kInf, 1.0f);
  const Advice advice = AdviceOn({"fp16"});
  EXPECT_EQ(advice.formats.front().verdict, Verdict::kOverflows);
  EXPECT_EQ(advice.formats.front().hopeless_steps, 7u);
}

// A bias before a normalization has no gradient but the rounding errors of the sum.
TEST_F(AdviceTest, NoiseIsNamedAndNotCounted) {
  for (int step = 0; step < 4; ++step) {
    WriteStep(step, {FloatTensor("c.weight.grad", {0.5f}), FloatTensor("c.bias.grad", {0x1p-28f}),
                     FloatTensor("c.act_grad", {0.01f, -0.01f})});
  }
  const Advice advice = AdviceOn({"fp16"});
  EXPECT_EQ(advice.formats.front().noise_tensors, std::vector<std::string>{"c.bias.grad"});
  EXPECT_EQ(advice.formats.front().verdict, Verdict::kAsIs);
  EXPECT_TRUE(advice.formats.front().at_risk.empty());
}

TEST_F(AdviceTest, SaysThatActivationsAreMissing) {
  WriteStep(0, {FloatTensor("a.weight.grad", {1.0f})});
  const Advice advice = AdviceOn({"fp16"});
  EXPECT_TRUE(advice.parameters_only);
  EXPECT_NE(AdviceLines(advice)[1].find("were not recorded"), std::string::npos)
      << AdviceLines(advice)[1];
}

// What tensors lose is measured at the scale that comes out in the end, also in the first steps.
TEST_F(AdviceTest, LooksAtAllStepsAtTheFinalScale) {
  for (int step = 0; step < 6; ++step) {
    const float big = step < 3 ? 0x1p-20f : 0x1p13f;
    WriteStep(step, {FloatTensor("a.weight.grad", {big}), FloatTensor("b.weight.grad", {0x1p-27f}),
                     FloatTensor("b.act_grad", std::vector<float>(64, 1.0f)),
                     FloatTensor("a.act_grad", std::vector<float>(64, 1.0f)),
                     FloatTensor("c.act_grad", std::vector<float>(64, 1.0f))});
  }
  const TraceReader trace = Open();
  const Advice windows = AdviceOf(TraceSteps(trace), {"fp16"});
  for (const TensorHarm& tensor : windows.formats.front().tensors) {
    EXPECT_EQ(tensor.harm.steps, 6u) << tensor.tensor->name;
  }
}

// Steps that are looked at before all others decide nothing of it.
TEST_F(AdviceTest, TensorsComeInTheOrderOfTheSteps) {
  for (int step = 0; step < 9; ++step) {
    std::vector<BuiltTensor> tensors = {FloatTensor("a.weight.grad", {1.0f})};
    if (step == 3) tensors.push_back(FloatTensor("early.grad", {1.0f}));
    if (step == 8) tensors.push_back(FloatTensor("last.grad", {1.0f}));
    WriteStep(step, tensors);
  }
  const TraceReader trace = Open();
  std::vector<std::string> names;
  const Advice advice = AdviceOf(TraceSteps(trace), {"fp16"});
  for (const TensorHarm& tensor : advice.formats[0].tensors) names.push_back(tensor.tensor->name);
  EXPECT_EQ(names, (std::vector<std::string>{"a.weight.grad", "early.grad", "last.grad"}));
}

TEST(PathsInWindows, CountWhereTheScaleWas) {
  std::vector<StepWindow> windows(6);
  for (StepWindow& window : windows) window.low = 0, window.high = 4;
  windows[3].low = 5;
  std::vector<ReplayStep> steps(6);
  steps[0].scale = 32, steps[0].finite = false;
  steps[1].scale = 0.5;
  steps[2].scale = 16;
  steps[3].scale = 16;
  steps[4].scale = 24;  // finite, and below the next power of two
  steps[5].scale = 32;  // finite, but clamped
  const PathInWindows path = CompareWithWindows(steps, windows);
  EXPECT_EQ(path.above, 2u);
  EXPECT_EQ(path.below, 1u);
  EXPECT_EQ(path.inside, 2u);
  EXPECT_EQ(path.none_safe, 1u);
}

// Gradients of queries that cancel: the recording names them at the steps with a forward pass.
TEST_F(AdviceTest, NoiseThatTheRecordingNamesIsNotCounted) {
  const auto write = [&](int step, const nlohmann::ordered_json& metadata) {
    dir_.Write("step-" + std::to_string(step) + ".safetensors",
               BuildSafetensors(
                   {FloatTensor("a.weight.grad", {0.5f}), FloatTensor("q.weight.grad", {0x1p-60f}),
                    FloatTensor("q.act_grad", {0x1p-60f, -0x1p-61f}),
                    FloatTensor("a.act_grad", {0.01f, -0.01f})},
                   metadata));
  };
  const nlohmann::ordered_json named = {{"autocast_float32", "a.act"},
                                        {"noise", "q.act_grad\nq.weight.grad"}};
  write(0, named);
  for (int step = 1; step < 4; ++step) write(step, nlohmann::ordered_json::object());
  const FormatAdvice noise = AdviceOn({"fp16"}).formats.front();
  EXPECT_EQ(noise.noise_tensors, (std::vector<std::string>{"q.weight.grad", "q.act_grad"}));
  EXPECT_EQ(noise.verdict, Verdict::kAsIs);
  write(1, {{"autocast_float32", "a.act"}});
  const FormatAdvice from_step_1 = AdviceOn({"fp16"}).formats.front();
  EXPECT_EQ(from_step_1.steps_outside, 3u);
  write(2, named);
  EXPECT_EQ(AdviceOn({"fp16"}).formats.front().steps_outside, 1u);
}

// A recorder knows the optimizer after its first step: the last step may be the first of a training
// that goes on.
TEST_F(AdviceTest, OneOfTheLastTwoStepsNamesTheOptimizer) {
  const auto noise_with_descent_at = [&](int named) {
    for (int step = 0; step < 4; ++step) {
      nlohmann::ordered_json metadata = {{"loss", "1"}};
      if (step == named) metadata["descent"] = "SGD";
      dir_.Write("step-" + std::to_string(step) + ".safetensors",
                 BuildSafetensors({FloatTensor("a.weight.grad", {0.5f}),
                                   FloatTensor("b.weight.grad", {0x1p-20f})},
                                  metadata));
    }
    return AdviceOn({"fp16"}).formats.front().noise_tensors;
  };
  const std::vector<std::string> slight = {"b.weight.grad"};
  EXPECT_EQ(noise_with_descent_at(3), slight);
  EXPECT_EQ(noise_with_descent_at(2), slight);
  EXPECT_TRUE(noise_with_descent_at(1).empty());
}

}  // namespace
}  // namespace dlsim::sim
