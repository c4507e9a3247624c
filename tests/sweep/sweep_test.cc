// SPDX-License-Identifier: Apache-2.0
#include "dlsim/sim/sweep.h"

#include <gtest/gtest.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "sim/advice/advice.h"
#include "sim/advice/policy_score.h"
#include "sim/base/quantity.h"
#include "sim/replay/trace_source.h"
#include "sim/sweep/totals_run.h"
#include "tests/support/profiled_trace.h"
#include "tests/support/random_runs.h"
#include "tests/support/replay_outcome.h"
#include "tests/support/same_stats.h"
#include "tests/support/small_replay.h"
#include "tests/support/test_traces.h"

namespace dlsim::sim {
namespace {

class OneThread {
#ifdef _OPENMP
 public:
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(threads_); }

 private:
  int threads_ = omp_get_max_threads();
#endif
};

void ExpectNear(double expected, double got, const char* what) {
  if (expected == got || (std::isnan(expected) && std::isnan(got))) return;
  EXPECT_LE(std::fabs(expected - got), 1e-12 * std::fabs(expected))
      << what << ": " << expected << " " << got;
}

void ExpectSameScales(const SweepOutcome& expected, const SweepOutcome& got) {
  EXPECT_EQ(expected.steps, got.steps);
  EXPECT_EQ(expected.skipped_steps, got.skipped_steps);
  EXPECT_EQ(expected.nonfinite_steps, got.nonfinite_steps);
  EXPECT_EQ(expected.hopeless_steps, got.hopeless_steps);
  EXPECT_EQ(expected.longest_skip_run, got.longest_skip_run);
  EXPECT_EQ(expected.first_applied_step, got.first_applied_step);
  EXPECT_EQ(HexFloat(expected.final_scale), HexFloat(got.final_scale));
  EXPECT_EQ(HexFloat(expected.min_scale), HexFloat(got.min_scale));
  EXPECT_EQ(HexFloat(expected.max_scale), HexFloat(got.max_scale));
  ASSERT_EQ(expected.fatal.has_value(), got.fatal.has_value());
  if (!expected.fatal) return;
  EXPECT_EQ(expected.fatal->step, got.fatal->step);
  EXPECT_EQ(expected.fatal->type, got.fatal->type);
  EXPECT_EQ(expected.fatal->message, got.fatal->message);
}

void ExpectSame(const SweepOutcome& expected, const SweepOutcome& got) {
  ExpectSameScales(expected, got);
  ExpectSameInHistogram(got.gradients, expected.gradients);
  EXPECT_EQ(got.gradients.quantized_sum_of_squares, 0);
  ExpectNear(expected.worst_step_energy_lost, got.worst_step_energy_lost, "worst step");
  ExpectNear(expected.mean_energy_lost, got.mean_energy_lost, "mean energy lost");
  EXPECT_TRUE(got.exact);
  EXPECT_EQ(got.energy_bracket.low, got.mean_energy_lost);
  EXPECT_EQ(got.energy_bracket.high, got.mean_energy_lost);
}

std::string Describe(const ReplayRun& run) {
  return run.format + " " + run.policy + " test " + std::string(NameOf(run.rules.finite_test)) +
         " rounding " + std::to_string(static_cast<int>(run.conversion.rounding)) + " overflow " +
         std::to_string(static_cast<int>(run.conversion.overflow)) + " scale " +
         HexFloat(run.scaler.scale());
}

void ExpectOnePassEqualsReplays(const TraceReader& trace, const std::vector<ReplayRun>& runs,
                                const ReplayOptions& options) {
  const TraceSource source(trace, options.accumulate_steps);
  const std::vector<SweepOutcome> outcomes = Sweep(source, runs, {.replay = options});
  ASSERT_EQ(outcomes.size(), runs.size());
  // This many short replays would mostly wait for threads.
  [[maybe_unused]] const OneThread one_thread;
  for (size_t r = 0; r < runs.size(); ++r) {
    SCOPED_TRACE(Describe(runs[r]));
    ExpectSame(OutcomeOf(Replay(trace, {runs[r]}, options).front()), outcomes[r]);
    if (testing::Test::HasFailure()) break;
  }
}

// Each trace with other options, so that all options meet steps and micro-steps.
class BundledTraces : public testing::TestWithParam<int> {};

TEST_P(BundledTraces, OnePassEqualsFiveHundredReplays) {
  const std::vector<std::string> traces = {"cnn-digits", "lm-kjv-accum-cut", "lm-trouble-cut",
                                           "reg-diabetes-cut"};
  const int i = GetParam();
  ReplayOptions options;
  if (i >= 4) {
    options.checked = Checked::kAllGradients;
    options.on_fatal = OnFatal::kContinue;
    options.step.accumulation = Accumulation::kSumThenQuantize;
  }
  const TraceReader trace = OpenTrace({kTraces + traces[static_cast<size_t>(i % 4)]});
  const size_t count = i < 4 ? 500 : 100;
  ExpectOnePassEqualsReplays(trace, RandomRuns(static_cast<uint32_t>(i)).Make(count), options);
}

INSTANTIATE_TEST_SUITE_P(Sweep, BundledTraces, testing::Range(0, 8));

// Gradients of which any may be anywhere in float32, so that norms, sums and unscaling overflow.
class WildTraces : public SmallReplayTest, public testing::WithParamInterface<int> {
 protected:
  std::vector<float> Values(int magnitude, int spread, size_t count) {
    std::vector<float> values;
    if (Draw(0, 9) == 0) values.push_back(std::numeric_limits<float>::infinity());
    if (Draw(0, 19) == 0) values.push_back(std::numeric_limits<float>::quiet_NaN());
    if (Draw(0, 2) == 0) values.push_back(0);
    while (values.size() < count) {
      const int exponent = std::clamp(magnitude - Draw(0, spread), -149, 127);
      const float value = std::ldexp(1 + static_cast<float>(Draw(0, 1023)) / 1024, exponent);
      values.push_back(Draw(0, 1) == 0 ? value : -value);
    }
    return values;
  }

  void WriteFile(const std::string& name) {
    const int magnitude = Draw(0, 2) == 0 ? Draw(50, 127) : Draw(-60, 20);
    std::vector<BuiltTensor> tensors;
    for (const char* tensor : {"a.weight.grad", "a.bias.grad", "a.act_grad"}) {
      const int of_tensor = magnitude - Draw(0, 8);
      tensors.push_back(FloatTensor(tensor, Values(of_tensor, Draw(0, 12), 40)));
    }
    dir_.Write(name + ".safetensors", BuildSafetensors(tensors));
  }

  void WriteTrace(int steps, int micro_steps) {
    for (int step = 0; step < steps; ++step) {
      const std::string name = "step-" + std::to_string(100 + step);
      if (micro_steps == 0) WriteFile(name);
      for (int micro = 0; micro < micro_steps; ++micro) {
        WriteFile(name + ".micro-0" + std::to_string(micro));
      }
    }
  }

  int Draw(int from, int to) { return std::uniform_int_distribution(from, to)(random_); }
  std::mt19937 random_ = std::mt19937(static_cast<uint32_t>(GetParam()));
};

TEST_P(WildTraces, OnePassEqualsReplays) {
  const int i = GetParam();
  WriteTrace(20, i % 2 == 0 ? 0 : 3);
  ReplayOptions options;
  options.checked = i % 3 == 0 ? Checked::kAllGradients : Checked::kParameterGradients;
  options.on_fatal = i % 5 == 0 ? OnFatal::kStop : OnFatal::kContinue;
  ExpectOnePassEqualsReplays(Open(), RandomRuns(static_cast<uint32_t>(i)).Make(400), options);
}

INSTANTIATE_TEST_SUITE_P(Sweep, WildTraces, testing::Range(0, 8));

// Policies whose scales stay on the ladder.
std::vector<ReplayRun> LadderRuns(const Ladder& ladder) {
  std::vector<ReplayRun> runs;
  for (const NamedFormat& format : ladder.formats) {
    for (const int exponent : {-20, 0, 10, 16, 24, 32, 40}) {
      const std::string scale = "2^" + std::to_string(exponent);
      runs.push_back(PolicyRun("static", {"loss_scale=" + scale}, format.name));
      if (exponent < 0 || exponent == 40) continue;  // they would leave it
      runs.push_back(PolicyRun("torch", {"init_scale=" + scale, "growth_interval=3"}, format.name));
      runs.push_back(PolicyRun("cerebras",
                               {"initial_loss_scale=" + scale, "steps_per_increase=2",
                                "max_loss_scale=2^40", "min_loss_scale=2^-14"},
                               format.name));
    }
    runs.push_back(PolicyRun("cerebras", {}, format.name));
    runs.push_back(PolicyRun("fairscale", {"init_scale=2^20"}, format.name));
    runs.push_back(PolicyRun("popart", {}, format.name));
  }
  return runs;
}

class ProfiledSteps : public testing::TestWithParam<const char*> {};

TEST_P(ProfiledSteps, EqualReplaysOnTheLadder) {
  const TraceReader trace = OpenTrace({kTraces + GetParam()});
  const Ladder ladder = DefaultLadder();
  const HistogramEdges edges = EdgesOf(ladder);
  const ProfiledTrace profile(trace, edges);
  [[maybe_unused]] const OneThread one_thread;
  std::vector<ReplayRun> runs = LadderRuns(ladder);
  // How many sums of micro-steps are above a limit, histograms do not tell.
  std::erase_if(runs, [&](const ReplayRun& run) {
    return run.scaler.histogram_edge() && profile.parts() > 1;
  });
  size_t next = 0;
  for (ReplayRun& run : runs) {
    run.conversion.rounding = ladder.roundings[next % ladder.roundings.size()];
    run.conversion.subnormals = ladder.subnormals[next++ % ladder.subnormals.size()];
  }
  const std::vector<SweepOutcome> outcomes = Sweep(profile, runs, {});
  for (size_t r = 0; r < runs.size(); ++r) {
    SCOPED_TRACE(Describe(runs[r]));
    ExpectSame(OutcomeOf(Replay(trace, {runs[r]}, {}).front()), outcomes[r]);
  }
}

TEST_P(ProfiledSteps, BracketWhatTheLadderDoesNotHave) {
  const TraceReader trace = OpenTrace({kTraces + GetParam()});
  const HistogramEdges edges({});  // powers of two only
  const ProfiledTrace profile(trace, edges);
  [[maybe_unused]] const OneThread one_thread;
  std::vector<ReplayRun> runs = RandomRuns(3).Make(200);
  std::erase_if(
      runs, [](const ReplayRun& run) { return run.conversion.rounding == Rounding::kStochastic; });
  const std::vector<SweepOutcome> outcomes = Sweep(profile, runs, {});
  size_t inexact = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    SCOPED_TRACE(Describe(runs[r]));
    const SweepOutcome expected = OutcomeOf(Replay(trace, {runs[r]}, {}).front());
    if (outcomes[r].exact) ExpectSame(expected, outcomes[r]);
    // Elements tell for every scale whether a step is finite; norms and sums mostly do.
    const FiniteTest test = runs[r].rules.finite_test;
    const bool one_part = profile.parts() == 1;
    if (test == FiniteTest::kElementwise && one_part && !runs[r].scaler.histogram_edge()) {
      ExpectSameScales(expected, outcomes[r]);
    }
    constexpr double kRoom = 1e-12;
    EXPECT_LE(outcomes[r].energy_bracket.low, expected.mean_energy_lost * (1 + kRoom));
    EXPECT_GE(outcomes[r].energy_bracket.high * (1 + kRoom), expected.mean_energy_lost);
    inexact += outcomes[r].exact ? 0 : 1;
  }
  EXPECT_GT(inexact, runs.size() / 4);
}

INSTANTIATE_TEST_SUITE_P(Sweep, ProfiledSteps,
                         testing::Values("cnn-digits", "lm-kjv-accum-cut", "lm-trouble-cut",
                                         "reg-diabetes-cut"));

// What tune says of a replay, and the windows of its format, found by themselves.
class SweptWindows : public testing::TestWithParam<const char*> {};

TEST_P(SweptWindows, SayWhatEachRunLoses) {
  const TraceReader trace = OpenTrace({kTraces + GetParam()});
  const TraceSource source(trace, 1);
  [[maybe_unused]] const OneThread one_thread;
  std::vector<ReplayRun> runs = RandomRuns(11).Make(120);
  std::erase_if(
      runs, [](const ReplayRun& run) { return run.conversion.rounding == Rounding::kStochastic; });
  const std::vector<SweepOutcome> outcomes =
      Sweep(source, runs, {.replay = {}, .windows = SearchWindows::kYes});
  size_t below = 0, certain = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    SCOPED_TRACE(Describe(runs[r]));
    const Advice advice =
        AdviseOn(source, {.formats = {runs[r].format}, .conversion = runs[r].conversion});
    const ReplayResult result = Replay(trace, {runs[r]}, {}).front();
    double lost = static_cast<double>(source.step_count() - result.steps.size());
    uint64_t steps_below = 0, clamped = 0;
    for (size_t i = 0; i < result.steps.size(); ++i) {
      const ReplayStep& step = result.steps[i];
      const StepWindow& window = advice.formats[0].windows[i];
      const bool applied = step.finite && !step.skipped;
      lost += applied ? window.LossAt(step.scale) : 1;
      steps_below += applied && !window.hopeless && step.scale < window.lowest_scale();
      clamped += applied && (window.hopeless || step.scale > window.highest_scale);
    }
    ASSERT_TRUE(outcomes[r].mean_loss);
    EXPECT_EQ(steps_below, outcomes[r].steps_below_window);
    EXPECT_NEAR(*outcomes[r].mean_loss, lost / static_cast<double>(source.step_count()), 1e-12);
    below += steps_below > 0;
    // What is clamped counts as lost; below a window harm is predicted.
    const double replayed = ScoreOf(result, source.step_count(), runs[r].conversion).mean_loss;
    if (steps_below == 0) {
      EXPECT_GE(*outcomes[r].mean_loss, replayed - 1e-12);
      if (clamped == 0) {
        EXPECT_NEAR(*outcomes[r].mean_loss, replayed, 1e-12);
      }
      certain += clamped == 0;
    }
  }
  EXPECT_GT(below, 5);
  EXPECT_GT(certain, 20);
}

INSTANTIATE_TEST_SUITE_P(Sweep, SweptWindows,
                         testing::Values("cnn-digits", "lm-trouble-cut", "reg-diabetes-cut"));

TEST(SweepOfAProfile, RefusesStochasticRounding) {
  const HistogramEdges edges({});
  const ProfiledTrace profile(OpenTrace({kTraces + "reg-diabetes-cut"}), edges);
  ReplayRun run = PolicyRun("torch", {});
  run.conversion.rounding = Rounding::kStochastic;
  try {
    Sweep(profile, {run}, {});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("stochastic rounding"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace dlsim::sim
