// SPDX-License-Identifier: Apache-2.0
// What tune recommends: known answers on made traces, and no random policy beats it on real ones.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "dlsim/error.h"
#include "dlsim/sim/policies.h"
#include "sim/advice/tuning.h"
#include "sim/base/quantity.h"
#include "tests/support/small_replay.h"
#include "tests/support/tables_of.h"
#include "tests/support/test_traces.h"
#include "tests/support/tune_samples.h"

namespace dlsim::sim {
namespace {

class Tuning : public SmallReplayTest {
 protected:
  void WriteSteps(int from, int to, const std::string& tensor, const std::vector<float>& values) {
    for (int step = from; step < to; ++step) WriteStep(step, {FloatTensor(tensor, values)});
  }
  FormatTuning Tune(const std::string& format, const std::string& policy = "cerebras-2.10") {
    return TuneTrace(Open(), {format}, policy).formats.front();
  }
};

TEST_F(Tuning, NeedsNoScaleWhereNothingIsLost) {
  WriteSteps(0, 4, "w.grad", {1.0f, -0.5f});
  const FormatTuning tuning = Tune("fp16");
  EXPECT_EQ(ScalingAdvised(tuning), "no scale needed");
  EXPECT_EQ(tuning.choices.front().score.mean_loss, 0);
  EXPECT_EQ(tuning.least_loss, 0);
  EXPECT_TRUE(tuning.choices.front().optimal);
  EXPECT_EQ(tuning.choices.front().parameters.interval, 2000);
}

// As high as leaves two binades below the end of the window, unless the format has no need.
TEST_F(Tuning, StartsHighWhereNoScaleIsNeeded) {
  WriteSteps(0, 4, "w.grad", {1.0f, -0.5f});
  const auto start = [&](const char* format) {
    return Tune(format).choices.front().parameters.init;
  };
  EXPECT_EQ(start("fp16"), 0x1p13);
  EXPECT_EQ(start("cb16"), 0x1p29);
  EXPECT_EQ(start("bf16"), 1);
}

// 2^-26 becomes zero up to scale 2 (a tie), 1 fits below 65520.
TEST_F(Tuning, FindsTheWindow) {
  WriteSteps(0, 2, "w.grad", {1.0f});
  WriteSteps(2, 4, "w.grad", {0x1p-26f});
  const FormatTuning tuning = Tune("fp16");
  EXPECT_EQ(ScalingAdvised(tuning), "static scale enough");
  EXPECT_EQ(tuning.comparisons.front().score.mean_loss, 0.5);  // without a scale
  const CommonScales scales = CommonScalesOf(tuning.windows);
  EXPECT_EQ(scales.low, 4);
  EXPECT_EQ(scales.low_step->step, 2);
  EXPECT_EQ(scales.high, double{std::nextafter(65520.0f, 0.0f)});
  EXPECT_EQ(scales.high_step->step, 0);
  EXPECT_EQ(tuning.windows.back().finite_scale, std::nextafter(0x1p26f * 65520.0f, 0.0f));
  // Two binades below the end of 2^2 to 2^15.
  EXPECT_EQ(tuning.safest->low, 2);
  EXPECT_EQ(tuning.safest->high, 15);
  EXPECT_EQ(tuning.fixed_scale, 0x1p13);
  EXPECT_EQ(tuning.choices.front().parameters.init, 0x1p13);
  EXPECT_EQ(tuning.choices.front().score.mean_loss, 0);
}

// The first steps need a scale below 2^-4, the last one above 2, with time to climb in between.
TEST_F(Tuning, MovesWhereNoStaticScaleServesAllSteps) {
  WriteSteps(0, 10, "big.grad", {0x1p20f});
  WriteSteps(10, 30, "middle.grad", {1.0f});
  WriteSteps(30, 40, "tiny.grad", {0x1p-26f});
  const FormatTuning tuning = Tune("fp16");
  EXPECT_EQ(ScalingAdvised(tuning), "dynamic scaling recommended");
  EXPECT_EQ(tuning.fixed.score.mean_loss, 0.25);
  const CommonScales scales = CommonScalesOf(tuning.windows);
  EXPECT_TRUE(scales.empty());
  EXPECT_EQ(scales.low, 4);
  EXPECT_LT(scales.high, 0x1p-4);
  const PolicyChoice& choice = tuning.choices.front();
  EXPECT_LE(choice.score.mean_loss, 0.05);  // a skip and a step that the scale reaches late
  EXPECT_TRUE(choice.score.grew);
  EXPECT_EQ(choice.score.events, 0u);
  EXPECT_EQ(scales.high_step->high_tensor, "big.grad");
  EXPECT_EQ(scales.low_step->low_tensor, "tiny.grad");
}

// Both needs within each step: what overflows must be lost, or what underflows.
TEST_F(Tuning, SaysWhenNoScaleHelps) {
  for (int step = 0; step < 3; ++step) {
    WriteStep(step, {FloatTensor("a.grad", std::vector<float>(4096, 0x1p-30f)),
                     FloatTensor("b.grad", {0x1p-6f}), FloatTensor("bad.grad", {65520.0f})});
  }
  const FormatTuning torn = Tune("fp16");
  EXPECT_EQ(ScalingAdvised(torn), "no scale helps");
  EXPECT_EQ(torn.empty_steps, 3u);
  // At scale 1 all is skipped; below only one tensor of three is lost.
  EXPECT_EQ(torn.comparisons.front().score.mean_loss, 1);
  EXPECT_NEAR(torn.choices.front().score.mean_loss, 1.0 / 3, 1e-6);
  for (int step = 0; step < 3; ++step) {
    WriteStep(step, {FloatTensor("ok.grad", {1.0f}),
                     FloatTensor("bad.grad", {std::numeric_limits<float>::quiet_NaN()})});
  }
  const FormatTuning tuning = Tune("fp16");
  EXPECT_EQ(ScalingAdvised(tuning), "no scale helps");
  EXPECT_EQ(tuning.hopeless_steps, 3u);
  EXPECT_EQ(tuning.least_loss, 1);
  EXPECT_EQ(tuning.windows.front().high_tensor, "bad.grad");
}

// In a format of five exponent bits 2^40 and 2^-10 never fit together.
TEST_F(Tuning, CountsStepsThatLoseAtEveryScale) {
  std::vector<float> tiny(1 << 16, 0x1p-8f);
  for (int step = 0; step < 2; ++step) {
    WriteStep(step, {FloatTensor("tiny.grad", tiny), FloatTensor("one.grad", {1.0f})});
  }
  const FormatTuning tuning = Tune("e2m1");
  EXPECT_EQ(tuning.empty_steps, 2u);
  // 2^16 * 2^-16 against 1.
  EXPECT_NEAR(tuning.least_loss, 0.5, 1e-12);
  EXPECT_TRUE(tuning.choices.front().optimal);
  EXPECT_EQ(tuning.windows.front().low_tensor, "tiny.grad");
}

// What a person would paste, also where no scale serves.
TEST_F(Tuning, RecommendsPowersOfTwo) {
  WriteSteps(0, 4, "a.grad", {48000.0f, 3e-5f});
  WriteSteps(4, 8, "a.grad", {123.0f, 7e-9f});
  for (const std::string format : {"fp16", "fp8-e4m3", "fp8-e5m2", "e2m1", "cb16"}) {
    const FormatTuning tuning = Tune(format);
    EXPECT_TRUE(IsPowerOfTwo(tuning.fixed_scale)) << format;
    for (const PolicyChoice& choice : tuning.choices) {
      for (const auto& [name, value] : choice.named) {
        const auto* scale = std::get_if<double>(&value);
        EXPECT_TRUE(scale == nullptr || IsPowerOfTwo(*scale)) << format << name;
      }
    }
  }
}

TEST_F(Tuning, ActivationGradientsDecideIfAsked) {
  WriteStep(0, {FloatTensor("w.grad", {0x1p-26f}), FloatTensor("x.act_grad", {0x1p14f})});
  TuneRequest request;
  request.formats = {"fp16"};
  const TraceReader trace = Open();
  const StepSource steps = TraceSteps(trace);
  const auto limit = [&](Checked checked) {
    ReplayOptions options;
    options.checked = checked;
    return AdviseOn(steps, request, options).formats.front().windows.front().finite_scale;
  };
  EXPECT_GT(limit(Checked::kParameterGradients), 0x1p40);
  EXPECT_LT(limit(Checked::kAllGradients), 4);
}

TEST(TuneFamily, KnowsTheNamesOfTheStacks) {
  const PolicyFamily cerebras = FamilyOf("cerebras-2.10", "cb16");
  EXPECT_EQ(cerebras.init, "init_scale");
  EXPECT_EQ(cerebras.min, "min_loss_scale");
  EXPECT_EQ(cerebras.max, "max_loss_scale");
  EXPECT_EQ(cerebras.interval, "steps_per_increase");
  EXPECT_EQ(cerebras.defaults.max, 0x1p31);
  EXPECT_EQ(cerebras.lowest_min, 0x1p-14);
  EXPECT_EQ(FamilyOf("torch", "fp16").interval, "growth_interval");
  EXPECT_EQ(FamilyOf("megatron", "fp16").hysteresis, "hysteresis");
  const PolicyFamily deepspeed = FamilyOf("deepspeed", "fp16");
  EXPECT_EQ(deepspeed.hysteresis, "delayed_shift");
  EXPECT_FALSE(deepspeed.Make({.init = 3, .min = 1, .max = 0, .interval = 5}));
  EXPECT_TRUE(deepspeed.Make({.init = 4, .min = 1, .max = 0, .interval = 5}));
  EXPECT_EQ(FamilyOf("fairseq", "fp16").min, "min_loss_scale");  // of two floors the last
  EXPECT_EQ(FamilyOf("jmp", "fp16").init, "loss_scale");
}

TEST(TuneFamily, RefusesPoliciesWithoutOneScaleAndAnInterval) {
  const std::set<std::string_view> refused = {"static", "fairscale",          "adaloss",
                                              "popart", "openseq2seq-logmax", "guided-diffusion"};
  for (const PolicyInfo& policy : Policies()) {
    if (refused.contains(policy.name)) {
      EXPECT_THROW(FamilyOf(policy.name, "fp16"), Error) << policy.name;
    } else {
      const PolicyFamily family = FamilyOf(policy.name, "fp16");
      EXPECT_TRUE(family.Make(family.defaults)) << policy.name;
    }
  }
}

TEST(TuneFamily, WritesNumbersThatReadBack) {
  EXPECT_EQ(ScaleNumber(65536), "65536");
  EXPECT_EQ(ScaleNumber(0x1p-14), "6.103515625e-05");
  EXPECT_EQ(ScaleNumber(6.72e-05), "6.72e-05");
}

TEST(TuneProfile, RecommendsWhatTheTraceDoes) {
  const std::vector<std::string> paths = {kTraces + "cnn-digits"};
  const TraceReader trace = TraceReader::Open(paths, {});
  const StepSource profile = TablesOf(TraceSteps(trace, 1));
  TuneRequest request;
  request.formats = {"fp16", "cb16"};
  request.policy = "cerebras-2.10";
  const TuneResult got = Tune(profile, request, AdviseOn(profile, request));
  const TuneResult expected = TuneTrace(trace, request.formats);
  for (size_t f = 0; f < got.formats.size(); ++f) {
    const PolicyChoice& choice = got.formats[f].choices.front();
    const PolicyChoice& wanted = expected.formats[f].choices.front();
    EXPECT_EQ(choice.parameters, wanted.parameters);
    EXPECT_EQ(choice.score.mean_loss, wanted.score.mean_loss);
    EXPECT_EQ(got.formats[f].verdict, expected.formats[f].verdict);
    const CommonScales scales = CommonScalesOf(got.formats[f].windows);
    const CommonScales exact = CommonScalesOf(expected.formats[f].windows);
    EXPECT_EQ(scales.low, exact.low);
    EXPECT_EQ(scales.high, exact.high);
  }
}

struct Case {
  std::string trace, policy;
};

// But for what is not worth a change of the stack's defaults: a step of a hundred, or a spike.
class TuneAgainstRandom : public testing::TestWithParam<Case> {};

TEST_P(TuneAgainstRandom, NoPolicyBeatsTheRecommendation) {
  const std::vector<std::string> paths = {kTraces + GetParam().trace};
  const TraceReader trace = TraceReader::Open(paths, {});
  const TuneResult result = TuneTrace(trace, {"fp16", "bf16", "cb16"}, GetParam().policy);
  for (const FormatTuning& tuning : result.formats) {
    SCOPED_TRACE(tuning.format);
    const PolicyChoice& choice = tuning.choices.front();
    EXPECT_LE(tuning.least_loss, choice.score.mean_loss);
    const double margin = std::max(0.01, 1.5 / static_cast<double>(trace.step_count()));
    for (const double loss :
         RandomLosses(trace, FamilyOf(GetParam().policy, tuning.format), 700, 1)) {
      ASSERT_LE(choice.score.mean_loss, loss + margin);
      ASSERT_LE(tuning.least_loss, loss);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Traces, TuneAgainstRandom,
                         testing::Values(Case{"cnn-digits", "cerebras-2.10"},
                                         Case{"lm-kjv-accum-cut", "cerebras-2.10"},
                                         Case{"lm-trouble-cut", "cerebras-2.10"},
                                         Case{"reg-diabetes-cut", "cerebras-2.10"},
                                         Case{"lm-trouble-cut", "torch"}));

}  // namespace
}  // namespace dlsim::sim
