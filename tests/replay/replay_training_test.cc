// SPDX-License-Identifier: Apache-2.0
// Replay with what surrounds a policy in training: finite tests, clipping, accumulation, several
// optimizers.
#include <gtest/gtest.h>

#include <string>

#include "sim/replay/step_sources.h"
#include "tests/support/small_replay.h"
#include "tests/support/special_values.h"

namespace dlsim::sim {
namespace {

class ReplayTrainingTest : public SmallReplayTest {};

TEST_F(ReplayTrainingTest, TheSumTestSeesWhatCancels) {
  WriteStep(0, {FloatTensor("a.grad", {0x1p127f, 0x1p127f})});
  WriteStep(1, {FloatTensor("a.grad", {0x1p127f, -0x1p127f})});
  WriteStep(2, {FloatTensor("a.grad", {0x1p126f, 0x1p126f})});
  const ReplayResult result = RunOne(StaticRun(kBf16, 1, {.finite_test = FiniteTest::kSum}));
  EXPECT_EQ(result.steps[0].cause, Cause::kSum);
  EXPECT_TRUE(result.steps[1].finite);
  EXPECT_TRUE(result.steps[2].finite);
  const ReplayResult scaled = RunOne(StaticRun(kBf16, 0.5f, {.finite_test = FiniteTest::kSum}));
  EXPECT_TRUE(scaled.steps[0].finite);
}

TEST_F(ReplayTrainingTest, TheScaledNormDependsOnTheScale) {
  WriteStep(0, {FloatTensor("a.grad", {0x1p60f}), FloatTensor("b.grad", {0x1p60f})});
  const auto finite = [&](float scale, FiniteTest test) {
    return RunOne(StaticRun(kBf16, scale, {.finite_test = test})).steps[0].finite;
  };
  EXPECT_TRUE(finite(8, FiniteTest::kScaledNorm));
  EXPECT_FALSE(finite(16, FiniteTest::kScaledNorm));
  EXPECT_TRUE(finite(16, FiniteTest::kGlobalNorm));
}

TEST_F(ReplayTrainingTest, ClipsByTheNormOfTheQuantisedGradient) {
  WriteStep(0, {FloatTensor("a.grad", {3}), FloatTensor("b.grad", {4}),
                FloatTensor("c.act_grad", {100})});
  WriteStep(1, {FloatTensor("a.grad", {kInf}), FloatTensor("b.grad", {4})});
  ReplayRun run = PolicyRun("torch", {"init_scale=4"});
  run.clipping.max_norm = 1;
  const ReplayResult result = RunOne(run);
  EXPECT_EQ(result.steps[0].clip_coefficient, 1.0f / (5.0f + 1e-6f));
  EXPECT_EQ(result.steps[1].clip_coefficient, std::nullopt);
  EXPECT_EQ(result.summary.clipped_steps, 1u);
  run.clipping.rule = ClipRule::kTensorFlow;
  EXPECT_EQ(RunOne(run).steps[0].clip_coefficient, 0.2f);
  run.clipping.domain = ClipDomain::kScaled;
  EXPECT_EQ(RunOne(run).steps[0].clip_coefficient, 0.05f);
  run.clipping.max_norm = 100;
  EXPECT_EQ(RunOne(run).steps[0].clip_coefficient, 1.0f);
}

TEST_F(ReplayTrainingTest, ClipsByValueElementByElement) {
  WriteStep(0, {FloatTensor("a.grad", {3, -2, 2, 1, 0}), FloatTensor("c.act_grad", {100})});
  ReplayRun run = StaticRun(kFp16, 8);
  run.clipping.max_value = 2;
  const ReplayResult result = RunOne(run);
  EXPECT_EQ(result.steps[0].clipped_elements, 1u);
  EXPECT_EQ(result.summary.clipped_elements, 1u);
  EXPECT_EQ(result.summary.clipped_steps, 1u);
  run.clipping.domain = ClipDomain::kScaled;
  EXPECT_EQ(RunOne(run).steps[0].clipped_elements, 4u);
}

TEST_F(ReplayTrainingTest, ClippingByValueSeesTheSumOverMicroSteps) {
  for (const char* micro : {"0", "1"}) {
    dir_.Write(std::string("step-0.micro-") + micro + ".safetensors",
               BuildSafetensors({FloatTensor("a.grad", {1.5f, -1.5f, 0.5f})}));
  }
  ReplayRun run = StaticRun(kFp16);
  run.clipping.max_value = 2;
  EXPECT_EQ(RunOne(run).steps[0].clipped_elements, 2u);
  EXPECT_EQ(RunOne(run).steps[0].clippable_elements, 3u);
}

TEST_F(ReplayTrainingTest, MeasuringDetailChangesNoCounter) {
  WriteStep(0, {FloatTensor("a.grad", {3e-9f, -2, 2e5f, 1, 0, 1e-7f})});
  ReplayRun run = StaticRun(kFp16, 3);
  const ReplayResult plain = RunOne(run);
  run.clipping.max_value = 1;
  const ReplayResult detailed = RunOne(run);
  EXPECT_EQ(plain.steps[0].grad_norm, detailed.steps[0].grad_norm);
  EXPECT_EQ(plain.steps[0].gradients.underflow, detailed.steps[0].gradients.underflow);
  EXPECT_EQ(plain.steps[0].gradients.overflow, detailed.steps[0].gradients.overflow);
  EXPECT_EQ(plain.steps[0].gradients.sum_of_squares, detailed.steps[0].gradients.sum_of_squares);
}

TEST_F(ReplayTrainingTest, AccumulatesRecordedSteps) {
  for (int step = 0; step < 5; ++step) {
    WriteStep(step * 10, {FloatTensor("a.grad", {static_cast<float>(step + 1)})});
  }
  const ReplayResult result = RunOne(StaticRun(kFp16), {}, 2);
  ASSERT_EQ(result.steps.size(), 2u);
  EXPECT_EQ(result.steps[0].step, 10);
  EXPECT_EQ(result.steps[0].grad_norm, 1.5);  // (1 + 2) / 2
  EXPECT_EQ(result.steps[1].step, 30);
  EXPECT_EQ(result.steps[1].grad_norm, 3.5);
  for (const int64_t bad : {0, -1, 6}) {
    EXPECT_THROW(RunOne(StaticRun(kFp16), {}, bad), Error) << bad;
  }
}

TEST_F(ReplayTrainingTest, ATraceWithMicroStepsKeepsThem) {
  for (const char* micro : {"0", "1"}) {
    dir_.Write(std::string("step-0.micro-") + micro + ".safetensors",
               BuildSafetensors({FloatTensor("a.grad", {1})}));
  }
  EXPECT_EQ(RunOne(StaticRun(kFp16), {}, 2).steps[0].grad_norm, 2);
  EXPECT_THROW(RunOne(StaticRun(kFp16), {}, 3), Error);
}

TEST_F(ReplayTrainingTest, RecordedMicroStepsAllowNoOtherNumber) {
  for (const char* micro : {"0", "1", "2"}) {
    dir_.Write(std::string("step-0.micro-") + micro + ".safetensors",
               BuildSafetensors({FloatTensor("a.grad", {1})}));
  }
  EXPECT_EQ(RunOne(StaticRun(kFp16), {}, 3).steps[0].grad_norm, 3);
  for (const int64_t other : {2, 4}) {
    EXPECT_THROW(RunOne(StaticRun(kFp16), {}, other), Error) << other;
  }
}

// Stochastic rounding draws by the number of the micro-step.
TEST_F(ReplayTrainingTest, AccumulatedStepsAreNumberedAsMicroSteps) {
  for (const int step : {0, 10, 20}) WriteStep(step, {FloatTensor("a.grad", {1})});
  const TraceReader trace = Open();
  const std::unique_ptr<Step> effective = TraceSteps(trace, 3).describe(0);
  EXPECT_EQ(effective->number(), 20);
  const std::vector<std::string> files = FilesOf(trace, 3, 0);
  const std::vector<Recording>& recordings = effective->recorded()->recordings;
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[0], recordings[0].place);
  EXPECT_EQ(files[2], recordings[2].place);
  ASSERT_EQ(recordings.size(), 3u);
  for (size_t k = 0; k < 3; ++k) EXPECT_EQ(recordings[k].micro, static_cast<int64_t>(k));
}

TEST_F(ReplayTrainingTest, WhatIsLostInSkippedStepsDoesNotCount) {
  WriteStep(0, {FloatTensor("a.grad", {1e-9f}), FloatTensor("b.grad", {kInf})});
  WriteStep(1, {FloatTensor("a.grad", {1}), FloatTensor("b.grad", {1})});
  const ReplayRun run = PolicyRun("torch", {"init_scale=1"});
  for (const bool optimizers : {false, true}) {
    ReplayOptions options;
    if (optimizers) options.optimizers = {{"all", "*"}};
    const ReplayResult result = RunOne(run, options);
    EXPECT_TRUE(result.steps[0].skipped);
    EXPECT_EQ(result.tensors[0].worst_step_energy_lost, 0);
    EXPECT_EQ(result.tensors[0].harm.worst, 0);
  }
}

TEST_F(ReplayTrainingTest, TorchSkipsEachOptimizerOnItsOwn) {
  WriteStep(0, {FloatTensor("a.x.grad", {kInf}), FloatTensor("b.x.grad", {3})});
  WriteStep(1, {FloatTensor("a.x.grad", {4}), FloatTensor("b.x.grad", {3})});
  WriteStep(2, {FloatTensor("a.x.grad", {4}), FloatTensor("b.x.grad", {kInf})});
  ReplayOptions options;
  options.optimizers = {{"first", "a.*"}, {"second", "*"}};
  ReplayRun run = PolicyRun("torch", {"init_scale=4"});
  run.clipping.max_norm = 1;
  const ReplayResult result = RunOne(run, options);
  const ReplayStep& step = result.steps[0];
  EXPECT_FALSE(step.finite);
  EXPECT_FALSE(step.skipped);
  EXPECT_EQ(step.next_scale, 2);
  ASSERT_EQ(step.optimizers.size(), 2u);
  EXPECT_TRUE(step.optimizers[0].skipped);
  EXPECT_EQ(step.optimizers[0].clip_coefficient, std::nullopt);
  EXPECT_FALSE(step.optimizers[1].skipped);
  EXPECT_EQ(step.optimizers[1].grad_norm, 3);
  EXPECT_EQ(step.optimizers[1].clip_coefficient, 1.0f / (3.0f + 1e-6f));
  EXPECT_EQ(result.steps[1].clip_coefficient, 1.0f / (4.0f + 1e-6f));
  EXPECT_FALSE(result.steps[2].optimizers[0].skipped);
  EXPECT_TRUE(result.steps[2].optimizers[1].skipped);
  EXPECT_FALSE(result.steps[2].skipped);
}

TEST_F(ReplayTrainingTest, OptimizersWithoutGradientsDoNotStep) {
  WriteStep(0, {FloatTensor("a.x.grad", {kInf})});
  WriteStep(1, {FloatTensor("a.x.grad", {kInf}), FloatTensor("b.x.grad", {3})});
  ReplayOptions options;
  options.optimizers = {{"first", "a.*"}, {"second", "*"}};
  const ReplayResult result = RunOne(PolicyRun("torch", {"init_scale=4"}), options);
  EXPECT_TRUE(result.steps[0].skipped);
  EXPECT_FALSE(result.steps[0].optimizers[1].has_gradients);
  EXPECT_FALSE(result.steps[0].optimizers[1].skipped);
  EXPECT_FALSE(result.steps[1].skipped);
  EXPECT_TRUE(result.steps[1].optimizers[1].has_gradients);
}

TEST_F(ReplayTrainingTest, CerebrasSkipsAllOptimizersTogether) {
  WriteStep(0, {FloatTensor("a.x.grad", {kInf}), FloatTensor("b.x.grad", {3})});
  ReplayOptions options;
  options.optimizers = {{"first", "a.*"}, {"second", "*"}};
  const ReplayStep step = RunOne(PolicyRun("cerebras-2.10", {"init_scale=4"}), options).steps[0];
  EXPECT_TRUE(step.skipped);
  EXPECT_TRUE(step.optimizers[0].skipped);
  EXPECT_TRUE(step.optimizers[1].finite);
  EXPECT_TRUE(step.optimizers[1].skipped);
}

TEST_F(ReplayTrainingTest, EveryGradientNeedsAnOptimizer) {
  WriteStep(0, {FloatTensor("a.grad", {1}), FloatTensor("b.grad", {3})});
  ReplayOptions options;
  options.optimizers = {{"first", "a*"}};
  EXPECT_THROW(RunOne(StaticRun(kFp16), options), Error);
}

}  // namespace
}  // namespace dlsim::sim
