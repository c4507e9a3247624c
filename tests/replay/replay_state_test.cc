// SPDX-License-Identifier: Apache-2.0
// Replay of policies with a scale per layer or gradient, of those that look at magnitudes, and of
// interrupted training.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "sim/replay/results.h"
#include "sim/replay/step_sources.h"
#include "tests/support/make_policy.h"
#include "tests/support/small_replay.h"
#include "tests/support/special_values.h"

namespace dlsim::sim {
namespace {

class ReplayStateTest : public SmallReplayTest {};

// Halves on overflow and skips.
struct Halving {
  struct Config {
    double scale = 1;
  };
  struct State {
    double scale = 1;
  };
  static State Start(const Config& config) { return {config.scale}; }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config&, const State& state, const ScalerInput& input) {
    return {.next = {input.overflow ? state.scale / 2 : state.scale}, .skip = input.overflow};
  }
  static constexpr std::tuple kFields = {StateField{"scale", &State::scale}};
};

TEST_F(ReplayStateTest, LayersHaveTheirOwnScale) {
  for (int step = 0; step < 3; ++step) {
    WriteStep(step, {FloatTensor("fc.weight.grad", {1}), FloatTensor("fc.bias.grad", {30000}),
                     FloatTensor("out.weight.grad", {1e-8f})});
  }
  const ReplayRun run =
      RunOf(kFp16, LossScaler::Make<Halving>({8}), {.granularity = ScaleGranularity::kLayer});
  const ReplayResult result = RunOne(run);
  EXPECT_TRUE(result.steps[0].skipped);
  EXPECT_EQ(result.steps[0].scale, 8);
  EXPECT_EQ(result.steps[0].next_scale, 4);
  EXPECT_EQ(result.steps[2].scale, 2);
  EXPECT_FALSE(result.steps[2].skipped);
  ASSERT_EQ(result.tensors.size(), 3u);
  EXPECT_EQ(result.tensors[0].scales->final, 2);  // shares the layer's scale
  EXPECT_EQ(result.tensors[1].scales->max, 8);
  EXPECT_EQ(result.tensors[2].scales->final, 8);
  EXPECT_EQ(result.tensors[1].stats.overflow, 2u);
}

// A factor that brings the largest element to 1024.
struct Fitting {
  struct Config {};
  struct State {
    double scale = 1;
  };
  static State Start(const Config&) { return {}; }
  static double Scale(const State& state) { return state.scale; }
  static void Prepare(const Config&, State& state, const GradientSpread& spread) {
    state.scale = 1024 / spread.absmax;
  }
  static Transition<State> Next(const Config&, const State& state, const ScalerInput&) {
    return {.next = state};
  }
  static constexpr std::tuple kFields = {StateField{"scale", &State::scale}};
};

TEST_F(ReplayStateTest, GradientsMayHaveTheirOwnFactor) {
  WriteStep(0, {FloatTensor("a.grad", {0x1p-30f, 0x1p-40f}), FloatTensor("b.grad", {0x1p30f})});
  const StackRules rules = {.granularity = ScaleGranularity::kTensor};
  const ReplayResult result = RunOne(RunOf(kFp16, LossScaler::Make<Fitting>({}), rules));
  EXPECT_EQ(result.tensors[0].scales->final, 0x1p40);
  EXPECT_EQ(result.tensors[1].scales->final, 0x1p-20);
  EXPECT_EQ(result.steps[0].gradients.underflow, 0u);
  EXPECT_EQ(result.steps[0].gradients.overflow, 0u);
  EXPECT_EQ(RunOne(StaticRun(kFp16)).steps[0].gradients.underflow, 2u);
}

// By the rule of arXiv 1910.12385: u_min / (sqrt(2) erfinv(n_uf) sigma), down to a power of two,
// between 1 and 65504 / max|g|.
TEST_F(ReplayStateTest, AdaLossFitsEachGradient) {
  WriteStep(0, {FloatTensor("a.grad", {0x1p-20f, -0x1p-20f}), FloatTensor("b.grad", {1, -1}),
                FloatTensor("c.grad", {0x1p-30f, -0x1p-30f}), FloatTensor("d.grad", {0.5f, 0.5f}),
                FloatTensor("e.grad", {0x1p18f, -0x1p18f})});
  const ReplayResult result = RunOne(PolicyRun("adaloss", {"use_bound=false"}));
  const double expected[] = {32, 1, 32768, 1, 0x1p-3};  // of 50.2, 4.8e-5, 51400, no spread, 0.25
  ASSERT_EQ(result.tensors.size(), 5u);
  for (size_t t = 0; t < 5; ++t) EXPECT_EQ(result.tensors[t].scales->final, expected[t]) << t;
  EXPECT_EQ(result.steps[0].scale, 0x1p-3);
  EXPECT_FALSE(result.steps[0].skipped);
}

TEST_F(ReplayStateTest, FairscaleHasAScalePerLayer) {
  for (int step = 0; step < 2; ++step) {
    WriteStep(step, {FloatTensor("fc.weight.grad", {1}), FloatTensor("fc.bias.grad", {100}),
                     FloatTensor("out.weight.grad", {1})});
  }
  const ReplayResult result = RunOne(PolicyRun("fairscale", {"init_scale=1024"}));
  EXPECT_TRUE(result.steps[0].skipped);
  EXPECT_FALSE(result.steps[1].skipped);
  EXPECT_EQ(result.tensors[0].scales->final, 512);
  EXPECT_EQ(result.tensors[1].scales->final, 512);
  EXPECT_EQ(result.tensors[2].scales->final, 1024);
}

TEST_F(ReplayStateTest, TheSpreadIsThatOfTheRecordedValues) {
  dir_.Write("step-0.micro-0.safetensors",
             BuildSafetensors({FloatTensor("a.grad", {1, 3, kInf})}, {{"grad_scale", "2"}}));
  dir_.Write("step-0.micro-1.safetensors", BuildSafetensors({FloatTensor("a.grad", {-1, 3, 5})}));
  const auto recorded = std::make_shared<const TraceStep>(Open().Load(0));
  const std::vector<GradientSpread> spreads =
      *Step(TabulateStep(*recorded, {}), recorded, {}).Spreads();
  ASSERT_EQ(spreads.size(), 1u);
  EXPECT_EQ(spreads[0].absmax, 5);
  // 0.5, 1.5, -1, 3, 5: mean 1.8
  EXPECT_NEAR(spreads[0].standard_deviation, std::sqrt((1.69 + 0.09 + 7.84 + 1.44 + 10.24) / 5),
              1e-12);
}

// Keeps the last input.
struct Watching {
  struct Config {};
  struct State {
    double scale = 4, absmax = 0;
    int64_t below = 0, above = 0;
  };
  static constexpr bool kUsesAbsmax = true;
  static double HistogramEdge(const Config&) { return 8; }
  static State Start(const Config&) { return {}; }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config&, const State& state, const ScalerInput& input) {
    return {.next = {state.scale, double{input.absmax}, static_cast<int64_t>(input.below_edge),
                     static_cast<int64_t>(input.above_edge)}};
  }
  static constexpr std::tuple kFields = {
      StateField{"scale", &State::scale}, StateField{"absmax", &State::absmax},
      StateField{"below", &State::below}, StateField{"above", &State::above}};
};

TEST_F(ReplayStateTest, PoliciesMayLookAtMagnitudes) {
  WriteStep(0, {FloatTensor("a.grad", {1, -2, 1.99f}), FloatTensor("b.grad", {3}),
                FloatTensor("c.grad", {1}), FloatTensor("d.act_grad", {50})});
  std::vector<NamedValue> state;
  ReplayOptions options;
  options.observer = [&](const ObservedStep& step) { state = step.runs[0].run.scaler.Describe(); };
  RunOne(RunOf(kFp16, LossScaler::Make<Watching>({})), options);
  EXPECT_EQ(std::get<double>(state[0].value), 3);
  EXPECT_EQ(std::get<int64_t>(state[1].value), 3);
  EXPECT_EQ(std::get<int64_t>(state[2].value), 2);
}

TEST_F(ReplayStateTest, AnInterruptedRunGoesAnotherWay) {
  for (int step = 0; step < 12; ++step) WriteStep(step, {FloatTensor("a.grad", {1})});
  const SimulationRequest request = {.formats = {"fp16"},
                                     .policies = {"torch"},
                                     .settings = {"init_scale=16", "growth_interval=4"},
                                     .conversion = {},
                                     .finite_test = {},
                                     .resume_at = 6};
  std::vector<SimulationRun> runs = PrepareRuns(request);
  ASSERT_EQ(runs.size(), 3u);
  const TraceReader trace = Open();
  Simulate(TraceSteps(trace, 1), {}, runs);
  EXPECT_EQ(runs[0].result.steps[11].scale, 64);
  EXPECT_EQ(runs[1].resume->kept, Kept::kScale);
  EXPECT_EQ(runs[1].first_difference, 8);  // the counter had reached 2 of 4
  EXPECT_EQ(runs[1].result.steps[9].scale, 32);
  EXPECT_EQ(runs[1].result.steps[10].scale, 64);
  EXPECT_EQ(runs[2].resume->kept, Kept::kNothing);
  EXPECT_EQ(runs[2].first_difference, 6);
  EXPECT_EQ(runs[2].result.steps[6].scale, 16);
}

TEST_F(ReplayStateTest, TrainingThatIsLostBeginsAnewNotFromTheCheckpoint) {
  for (int step = 0; step < 6; ++step) WriteStep(step, {FloatTensor("a.grad", {1})});
  const SimulationRequest request = {.formats = {"fp16"},
                                     .policies = {"torch"},
                                     .settings = {"init_scale=16", "growth_interval=4"},
                                     .conversion = {},
                                     .finite_test = {},
                                     .states = {"scale=4", "growth_tracker=2"},
                                     .resume_at = 1};
  std::vector<SimulationRun> runs = PrepareRuns(request);
  const TraceReader trace = Open();
  Simulate(TraceSteps(trace, 1), {}, runs);
  EXPECT_EQ(runs[0].result.steps[0].scale, 4);
  EXPECT_EQ(runs[0].result.steps[2].scale, 8);
  EXPECT_EQ(runs[1].result.steps[4].scale, 4);
  EXPECT_EQ(runs[1].result.steps[5].scale, 8);
  EXPECT_EQ(runs[2].result.steps[1].scale, 16);
  EXPECT_EQ(runs[2].result.steps[5].scale, 32);
}

TEST_F(ReplayStateTest, TheScaleOfAStepIsTheSmallestInUse) {
  WriteStep(0, {FloatTensor("a.grad", {0x1p-30f}), FloatTensor("b.grad", {0x1p30f})});
  WriteStep(1, {FloatTensor("a.grad", {0x1p-30f})});
  const StackRules rules = {.granularity = ScaleGranularity::kTensor};
  const ReplayResult result = RunOne(RunOf(kFp16, LossScaler::Make<Fitting>({}), rules));
  EXPECT_EQ(result.steps[0].scale, 0x1p-20);
  EXPECT_EQ(result.steps[1].scale, 0x1p40);
}

TEST_F(ReplayStateTest, FindsTheLongestRowSkippedInVain) {
  const float values[] = {1, kInf, 1, kInf, kInf, kInf, 1, 1e30f, 1e30f, 1e30f, 1e30f};
  for (int step = 0; step < 11; ++step) WriteStep(step, {FloatTensor("a.grad", {values[step]})});
  const ReplayResult result = RunOne(PolicyRun("torch", {"init_scale=2^15"}));
  const std::optional<HopelessRow> row = LongestHopelessRow(result);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->first_step, 3);
  EXPECT_EQ(row->last_step, 5);
  EXPECT_EQ(row->first_scale, 16384);
  EXPECT_EQ(row->last_scale, 2048);
  EXPECT_EQ(row->tensor, "a.grad");
  EXPECT_EQ(result.summary.hopeless_steps, 4u);
  EXPECT_EQ(result.summary.longest_skip_run, 4u);
  EXPECT_TRUE(result.steps[8].lower_scale_helps);
}

// Every field that steers a policy is in its checkpoint.
TEST(Checkpoint, RestoringAllFieldsContinuesThePath) {
  for (const PolicyInfo& policy : Policies()) {
    SCOPED_TRACE(policy.name);
    LossScaler whole = policy.make({}, "").scaler;
    const auto overflows = [](int step) { return step % 7 == 3 || (step > 30 && step < 36); };
    for (int step = 0; step < 50; ++step) {
      whole.Next({.overflow = overflows(step), .absmax = 1.5f, .below_edge = 9, .above_edge = 1});
    }
    LossScaler restored = policy.make({}, "").scaler;
    ContinueFrom(whole, restored);
    for (int step = 50; step < 5000; ++step) {
      const ScalerInput input = {.overflow = step % 977 == 5, .absmax = 0.5f, .below_edge = 9};
      whole.Next(input);
      restored.Next(input);
      ASSERT_EQ(whole.scale(), restored.scale()) << policy.name << " step " << step;
    }
  }
}

}  // namespace
}  // namespace dlsim::sim
