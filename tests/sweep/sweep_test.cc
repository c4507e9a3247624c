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
#include "sim/base/quantity.h"
#include "sim/replay/step_sources.h"
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
  // At scales that are no powers of two, values and tables round sums differently.
  TensorStats gradients = got.gradients;
  ForEachCounter([&](auto row) {
    if constexpr (std::is_same_v<decltype(row.kRow.of), double TensorStats::*>) {
      const double sum = expected.gradients.*row.kRow.of;
      ExpectNear(sum, gradients.*row.kRow.of, row.kRow.name);
      gradients.*row.kRow.of = sum;
    }
  });
  dlsim::ExpectSame(gradients, expected.gradients);
  ExpectNear(expected.worst_step_energy_lost, got.worst_step_energy_lost, "worst step");
  ExpectNear(expected.mean_energy_lost, got.mean_energy_lost, "mean energy lost");
  EXPECT_EQ(got.refused, "");
}

std::string Describe(const ReplayRun& run) {
  return run.format + " " + run.policy + " test " + std::string(NameOf(run.rules.finite_test)) +
         " rounding " + std::to_string(static_cast<int>(run.conversion.rounding)) + " overflow " +
         std::to_string(static_cast<int>(run.conversion.overflow)) + " scale " +
         HexFloat(run.scaler.scale());
}

void ExpectOnePassEqualsReplays(const TraceReader& trace, const std::vector<ReplayRun>& runs,
                                const ReplayOptions& options) {
  const std::vector<SweepOutcome> outcomes =
      Sweep(TraceSteps(trace), runs, {.replay = options}).outcomes;
  ASSERT_EQ(outcomes.size(), runs.size());
  // This many short replays would mostly wait for threads.
  [[maybe_unused]] const OneThread one_thread;
  for (size_t r = 0; r < runs.size(); ++r) {
    SCOPED_TRACE(Describe(runs[r]));
    const SweepOutcome expected = OutcomeOf(Replay(TraceSteps(trace), {runs[r]}, options).front());
    // A replay that clips measures the values, which has last digits of its own.
    if (runs[r].clipping.max_norm) {
      ExpectSameScales(expected, outcomes[r]);
    } else {
      ExpectSame(expected, outcomes[r]);
    }
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

// The tables of a trace alone, as in a profile.
class ProfiledSteps : public testing::TestWithParam<const char*> {
 protected:
  ProfiledSteps() {
    std::vector<StepTables> steps;
    for (size_t i = 0; i < trace_.step_count(); ++i) {
      steps.push_back(TabulateStep(trace_.Load(i), {}));
    }
    profile_ = HeldSteps(std::move(steps));
  }

  // Expects each run to equal its replay, or to be refused. Returns how many are refused.
  size_t Compare(const std::vector<ReplayRun>& runs) {
    const std::vector<SweepOutcome> outcomes = Sweep(profile_, runs).outcomes;
    [[maybe_unused]] const OneThread one_thread;
    size_t refused = 0;
    for (size_t r = 0; r < runs.size(); ++r) {
      SCOPED_TRACE(Describe(runs[r]));
      if (outcomes[r].refused.empty()) {
        const SweepOutcome expected = OutcomeOf(Replay(TraceSteps(trace_), {runs[r]}).front());
        ExpectSameScales(expected, outcomes[r]);
        if (!runs[r].clipping.max_norm) ExpectSame(expected, outcomes[r]);
      } else {
        if (refused++ == 0) first_reason_ = outcomes[r].refused;
      }
    }
    return refused;
  }

  TraceReader trace_ = OpenTrace({kTraces + GetParam()});
  StepSource profile_;
  std::string first_reason_;
};

TEST_P(ProfiledSteps, EqualReplaysAtPowersOfTwo) {
  std::vector<ReplayRun> runs;
  for (const char* format : {"fp16", "bf16", "cb16"}) {
    for (const int exponent : {-20, 0, 10, 16, 24, 32, 40}) {
      const std::string scale = "2^" + std::to_string(exponent);
      runs.push_back(PolicyRun("static", {"loss_scale=" + scale}, format));
      if (exponent < 0) continue;
      runs.push_back(PolicyRun("torch", {"init_scale=" + scale, "growth_interval=3"}, format));
      runs.push_back(PolicyRun("cerebras",
                               {"initial_loss_scale=" + scale, "steps_per_increase=2",
                                "max_loss_scale=2^40", "min_loss_scale=2^-14"},
                               format));
    }
  }
  for (size_t r = 0; r < runs.size(); r += 2) {
    runs[r].conversion.subnormals = Subnormals::kFlushToZero;
  }
  EXPECT_EQ(Compare(runs), 0u) << first_reason_;
}

// Among random runs are those that round otherwise, and whose scales are no powers of two.
TEST_P(ProfiledSteps, EqualReplaysOrRefuse) {
  const std::vector<ReplayRun> runs = RandomRuns(3).Make(200);
  const size_t refused = Compare(runs);
  EXPECT_GT(refused, 0u);
  EXPECT_LT(refused, runs.size());
}

// A run that leaves the powers of two is refused there.
TEST_P(ProfiledSteps, RefuseARunWhereItLeavesThem) {
  if (trace_.step_count() <= 2) GTEST_SKIP() << "it would end before";
  const ReplayRun run =
      PolicyRun("torch", {"init_scale=2^10", "growth_interval=2", "growth_factor=1.5"}, "fp16");
  const SweepOutcome outcome = Sweep(profile_, {run}).outcomes.front();
  EXPECT_NE(outcome.refused, "");
  EXPECT_GT(outcome.steps, 0u);
  EXPECT_LT(outcome.steps, trace_.step_count());
}

TEST_P(ProfiledSteps, RefuseStochasticRounding) {
  ReplayRun run = PolicyRun("torch", {});
  run.conversion.rounding = Rounding::kStochastic;
  const std::vector<SweepOutcome> outcomes =
      Sweep(profile_, {run, PolicyRun("torch", {})}, {.replay = {}, .formats = {run.format}})
          .outcomes;
  EXPECT_NE(outcomes[0].refused.find("rounds otherwise than to nearest"), std::string::npos);
  EXPECT_EQ(outcomes[0].steps, 0u);
  EXPECT_EQ(outcomes[1].refused, "");
}

INSTANTIATE_TEST_SUITE_P(Sweep, ProfiledSteps,
                         testing::Values("cnn-digits", "lm-kjv-accum-cut", "lm-trouble-cut",
                                         "reg-diabetes-cut"));

// What tune says of a replay, and the windows of its format, found by themselves.
class SweptWindows : public testing::TestWithParam<const char*> {};

TEST_P(SweptWindows, SayWhatEachRunLoses) {
  const TraceReader trace = OpenTrace({kTraces + GetParam()});
  const StepSource source = TraceSteps(trace, 1);
  [[maybe_unused]] const OneThread one_thread;
  std::vector<ReplayRun> runs = RandomRuns(11).Make(120);
  std::erase_if(
      runs, [](const ReplayRun& run) { return run.conversion.rounding == Rounding::kStochastic; });
  SweepOptions options;
  for (const ReplayRun& run : runs) options.formats.push_back(run.format);
  const std::vector<SweepOutcome> outcomes = Sweep(source, runs, options).outcomes;
  size_t below = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    SCOPED_TRACE(Describe(runs[r]));
    const Advice advice =
        AdviseOn(source, {.formats = {runs[r].format}, .conversion = runs[r].conversion});
    const ReplayResult result = Replay(source, {runs[r]}).front();
    double lost = static_cast<double>(source.step_count - result.steps.size());
    uint64_t steps_below = 0;
    for (size_t i = 0; i < result.steps.size(); ++i) {
      const ReplayStep& step = result.steps[i];
      const StepWindow& window = advice.formats[0].windows[i];
      const bool applied = step.finite && !step.skipped;
      lost += applied ? window.LossAt(step.scale) : 1;
      steps_below += applied && !window.hopeless && step.scale < window.lowest_scale();
    }
    ASSERT_TRUE(outcomes[r].mean_loss);
    EXPECT_EQ(steps_below, outcomes[r].steps_below_window);
    EXPECT_NEAR(*outcomes[r].mean_loss, lost / static_cast<double>(source.step_count), 1e-12);
    below += steps_below > 0;
  }
  EXPECT_GT(below, 5);
}

INSTANTIATE_TEST_SUITE_P(Sweep, SweptWindows,
                         testing::Values("cnn-digits", "lm-trouble-cut", "reg-diabetes-cut"));

}  // namespace
}  // namespace dlsim::sim
