// SPDX-License-Identifier: Apache-2.0
// The replay of updates: what 16 bits do to weights and moments, and what fixes it.
#include "sim/updates/update_replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/updates/update_verdict.h"
#include "src/base/set_threads.h"

namespace dlsim::sim {
namespace {

UpdateRunRequest Asked(const std::string& weights) {
  UpdateRunRequest request;
  request.weights = weights;
  return request;
}

UpdateRun RunOf(const UpdateRunRequest& request) { return MakeUpdateRuns(request, {}).front(); }

ProbeHead HeadOf(uint64_t count, size_t tensors = 1) {
  ProbeHead head;
  for (size_t t = 0; t < tensors; ++t) {
    ProbeTensor& tensor = head.tensors.emplace_back();
    tensor.name = "layer" + std::to_string(t) + ".weight";
    tensor.shape = {count};
    tensor.count = count;
  }
  return head;
}

ProbeStep StepOf(int64_t number, const ProbeGroup& group, std::vector<float> gradients,
                 size_t tensors = 1) {
  ProbeStep step;
  step.step = number;
  step.groups = {group};
  step.group_of.assign(tensors, 0);
  step.updated.assign(tensors, true);
  step.gradients = std::move(gradients);
  return step;
}

const ProbeGroup kAdam = {"adam", {{"lr", 1e-3}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}}};

std::vector<float> Normal(std::mt19937& random, size_t count, float scale) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = scale * normal(random);
  return values;
}

TEST(UpdateReplay, SomeSecondMomentsNeverDecayInBf16) {
  const std::pair<double, int> kExpected[] = {{0.999, 128}, {0.998, 122}, {0.997, 38}, {0.996, 0}};
  for (const auto& [beta2, expected] : kExpected) {
    OptimizerSettings settings;
    settings.beta2 = beta2;
    const UpdateRun run = RunOf(Asked("bf16"));
    const std::vector<float> gradients(128);
    TensorState state;
    state.weights = state.first = state.second = gradients;
    for (int i = 0; i < 128; ++i) state.second[i] = 1 + static_cast<float>(i) / 128;
    const std::vector<float> before = state.second;
    TensorStep step;
    step.gradients = gradients;
    step.settings = settings;
    UpdateTensor(run, step, state);
    int kept = 0;
    for (int i = 0; i < 128; ++i) kept += state.second[i] == before[i];
    EXPECT_EQ(kept, expected) << beta2;
  }
}

TEST(UpdateReplay, ABurstStaysInTheSecondMomentInBf16) {
  const std::pair<double, double> kExpected[] = {
      {0.999, 19}, {0.998, 35}, {0.997, 41}, {0.996, 1.0}};
  constexpr size_t kElements = 64;
  std::vector<UpdateRun> runs;
  for (const auto& [beta2, expected] : kExpected) {
    UpdateRunRequest request = Asked("bf16");
    request.kernel = UpdateKernel::kFused;
    request.gradients = "fp32";
    request.overrides.beta2 = beta2;
    runs.push_back(RunOf(request));
  }
  ProbeValues start;
  start.values.assign(kElements, 1);
  UpdateReplay replay(HeadOf(kElements), start, runs, 0, "probe");
  std::mt19937 random(1);
  for (int64_t step = 0; step < 20'000; ++step) {
    const float scale = step >= 1000 && step < 1200 ? 10 : 1;
    replay.Take(StepOf(step, kAdam, Normal(random, kElements, scale)));
  }
  const std::vector<RunOutcome> outcomes = replay.Outcomes();
  for (size_t r = 0; r < runs.size(); ++r) {
    ASSERT_TRUE(outcomes[r].second_bias.has_value());
    EXPECT_NEAR(*outcomes[r].second_bias / kExpected[r].second, 1, 0.05) << kExpected[r].first;
  }
}

// A weight of 256 in bf16 has neighbors at 254.. and 258: one does not move it.
TEST(UpdateReplay, TwoHundredFiftySixAndOneIs256) {
  UpdateRunRequest request = Asked("bf16");
  const ProbeGroup sgd = {"sgd", {{"lr", 1}, {"momentum", 0}}};
  const std::vector<UpdateRun> runs = MakeUpdateRuns(request, SettingsOf(sgd, {}, "probe"));
  ProbeValues start;
  start.values = {256, 8};
  UpdateReplay replay(HeadOf(2), start, runs, 0, "probe");
  for (int64_t step = 1; step <= 100; ++step) replay.Take(StepOf(step, sgd, {-1, -0.5f}));
  EXPECT_EQ(replay.StateOf(0, 0).weights[0], 256);
  EXPECT_EQ(replay.Float32Of(0, 0).weights[0], 356);
  EXPECT_EQ(replay.StateOf(0, 0).weights[1], 58);
  const std::vector<RunOutcome> outcomes = replay.Outcomes();
  ASSERT_EQ(outcomes.size(), 3u);
  EXPECT_EQ(outcomes[0].counts.updates, 200u);
  EXPECT_EQ(outcomes[0].counts.lost, 100u);
  EXPECT_EQ(outcomes[0].first_lost, 1);
  EXPECT_EQ(outcomes[0].harmed_since, 1);
  EXPECT_NEAR(*outcomes[0].drift, 100 / std::hypot(100, 50), 1e-12);
  EXPECT_NEAR(*outcomes[0].progress, 0.2, 1e-12);
  EXPECT_EQ(outcomes[1].run.name, "bf16 + sr");
  EXPECT_EQ(outcomes[2].run.name, "bf16 + kahan");
  EXPECT_EQ(VerdictOf(outcomes[2]), UpdateVerdict::kSound);
  EXPECT_EQ(outcomes[2].counts.lost, 0u);
  EXPECT_NEAR(replay.StateOf(2, 0).weights[0], 356, 1);
}

TEST(UpdateReplay, StochasticRoundingIsRightInTheMean) {
  constexpr size_t kElements = 4096;
  UpdateRunRequest request = Asked("bf16");
  request.rounding = WeightRounding::kStochastic;
  const ProbeGroup sgd = {"sgd", {{"lr", 1}}};
  ProbeValues start;
  start.values.assign(kElements, 256);
  UpdateReplay replay(HeadOf(kElements), start, std::vector{RunOf(request)}, 3, "probe");
  for (int64_t step = 1; step <= 10; ++step) {
    replay.Take(StepOf(step, sgd, std::vector<float>(kElements, -0.5f)));
  }
  double sum = 0;
  for (const float weight : replay.StateOf(0, 0).weights) sum += weight - 256;
  // A step moves by 2 with probability 1/4: ten of them by 5 with variance 7.5.
  const double deviation = std::sqrt(7.5 / kElements);
  EXPECT_NEAR(sum / kElements, 5, 4 * deviation);
}

TEST(UpdateReplay, Fp16HoldsNeitherEpsNorSmallSquares) {
  const std::vector<UpdateRun> runs = {RunOf(Asked("fp16"))};
  ProbeValues start;
  start.values = {1, 1};
  UpdateReplay replay(HeadOf(2), start, runs, 0, "probe");
  for (int64_t step = 1; step <= 3; ++step) replay.Take(StepOf(step, kAdam, {1e-3f, 0.5f}));
  UpdateStudy study;
  study.head = HeadOf(2);
  study.steps = 3;
  study.trained = SettingsOf(kAdam, {}, "probe");
  study.runs = replay.Outcomes();
  EXPECT_EQ(study.runs[0].nonfinite, 1u);
  EXPECT_EQ(
      UpdateSentences(study).front(),
      "fp16 cannot train: 50 % of the followed weights are not finite at the end (from step 1 "
      "on, first in layer0.weight); eps 1e-08 is zero in fp16.");
  EXPECT_EQ(FixesOf(study, study.runs[0]), std::vector<std::string>{"float32 weights and states"});
}

TEST(UpdateReplay, GoesOnFromTheStatesThatWereRecorded) {
  const std::vector<UpdateRun> runs = {RunOf(Asked("fp32"))};
  std::mt19937 random(1);
  const std::vector<float> first = Normal(random, 8, 1), second = Normal(random, 8, 1);
  ProbeValues start;
  start.values.assign(8, 1);
  UpdateReplay whole(HeadOf(8), start, runs, 0, "probe");
  whole.Take(StepOf(1, kAdam, first));
  ProbeState state = {0, 1, {}};
  const TensorState& kept = whole.StateOf(0, 0);
  for (size_t i = 0; i < 8; ++i) {
    start.values[i] = kept.weights[i];
  }
  state.values["exp_avg"] = kept.first;
  state.values["exp_avg_sq"] = kept.second;
  start.states = {state};
  UpdateReplay resumed(HeadOf(8), start, runs, 0, "probe");
  for (UpdateReplay* replay : {&whole, &resumed}) replay->Take(StepOf(2, kAdam, second));
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(whole.StateOf(0, 0).weights[i], resumed.StateOf(0, 0).weights[i]);
  }
}

TEST(UpdateReplay, ANewOptimizerBeginsWithoutStates) {
  const std::vector<UpdateRun> runs = {RunOf(Asked("bf16"))};
  std::mt19937 random(1);
  ProbeValues start;
  start.values.assign(8, 1);
  UpdateReplay whole(HeadOf(8), start, runs, 0, "probe");
  whole.Take(StepOf(1, kAdam, Normal(random, 8, 1)));
  ProbeValues between = {whole.StateOf(0, 0).weights, {{0, 0, {{"exp_avg", start.values}}}}};
  whole.Renew(between);  // the states of the same optimizer in float32
  EXPECT_NE(whole.StateOf(0, 0).first, std::vector<float>(8));
  between.states[0].values.clear();
  whole.Renew(between);
  UpdateReplay fresh(HeadOf(8), between, runs, 0, "probe");
  const std::vector<float> gradients = Normal(random, 8, 1);
  for (UpdateReplay* replay : {&whole, &fresh}) replay->Take(StepOf(2, kAdam, gradients));
  EXPECT_EQ(whole.StateOf(0, 0).weights, fresh.StateOf(0, 0).weights);
  EXPECT_EQ(whole.StateOf(0, 0).second, fresh.StateOf(0, 0).second);
}

TEST(UpdateReplay, IsTheSameForAnyNumberOfThreads) {
  constexpr size_t kTensors = 9, kElements = 2000;
  const std::vector<UpdateRun> runs = MakeUpdateRuns({}, SettingsOf(kAdam, {}, "probe"));
  std::vector<std::vector<float>> weights;
  for (const int threads : {1, 4}) {
    SetWantedThreads(threads);
    std::mt19937 random(1);
    ProbeValues start;
    start.values = Normal(random, kTensors * kElements, 1);
    UpdateReplay replay(HeadOf(kElements, kTensors), start, runs, 5, "probe");
    for (int64_t step = 1; step <= 3; ++step) {
      replay.Take(StepOf(step, kAdam, Normal(random, kTensors * kElements, 1), kTensors));
    }
    std::vector<float>& of_threads = weights.emplace_back();
    for (size_t r = 0; r < runs.size(); ++r) {
      for (size_t t = 0; t < kTensors; ++t) {
        const std::vector<float>& ends = replay.StateOf(r, t).weights;
        of_threads.insert(of_threads.end(), ends.begin(), ends.end());
      }
    }
  }
  SetWantedThreads(0);
  EXPECT_EQ(weights[0], weights[1]);
}

TEST(UpdateReplay, RefusesWhatItCannotReplay) {
  EXPECT_THROW(SettingsOf({"rmsprop", {{"lr", 1}}}, {}, "probe"), Error);
  EXPECT_THROW(SettingsOf({"adam", {}}, {}, "probe"), Error);
  SettingOverrides overrides;
  overrides.optimizer = OptimizerKind::kAdam;
  EXPECT_EQ(SettingsOf({"rmsprop", {{"lr", 1}}}, overrides, "probe").lr, 1);
  UpdateRunRequest request;
  request.rounding = WeightRounding::kStochastic;
  EXPECT_THROW(MakeUpdateRuns(request, {}), Error);  // of float32 weights
  request.weights = "bf16";
  request.compensation = Compensation::kKahan;
  EXPECT_THROW(MakeUpdateRuns(request, {}), Error);  // both
  request = Asked("bf16");
  request.states = "fp32";
  request.kernel = UpdateKernel::kForeach;
  EXPECT_THROW(MakeUpdateRuns(request, {}), Error);  // two formats
}

}  // namespace
}  // namespace dlsim::sim
