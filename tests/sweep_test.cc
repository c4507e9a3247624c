// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/sweep.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sim/number.h"
#include "tests/random_runs.h"
#include "tests/small_replay.h"
#include "tests/test_traces.h"

namespace dlsim {
namespace {

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
  const TensorStats &a = expected.gradients, &b = got.gradients;
  EXPECT_EQ(a.elements, b.elements);
  EXPECT_EQ(a.zeros, b.zeros);
  EXPECT_EQ(a.nan, b.nan);
  EXPECT_EQ(a.inf, b.inf);
  EXPECT_EQ(a.underflow, b.underflow);
  EXPECT_EQ(a.subnormal, b.subnormal);
  EXPECT_EQ(a.overflow, b.overflow);
  EXPECT_EQ(a.nonfinite_outputs, b.nonfinite_outputs);
  EXPECT_EQ(a.absmax, b.absmax);
  ExpectNear(a.sum_of_squares, b.sum_of_squares, "sum of squares");
  ExpectNear(a.underflow_sum_of_squares, b.underflow_sum_of_squares, "squares underflowing");
  EXPECT_EQ(b.quantized_sum_of_squares, 0);
  ExpectNear(expected.worst_step_energy_lost, got.worst_step_energy_lost, "worst step");
  ExpectNear(expected.mean_loss, got.mean_loss, "mean loss");
  EXPECT_TRUE(got.exact);
  EXPECT_EQ(got.loss_bracket.low, got.mean_loss);
  EXPECT_EQ(got.loss_bracket.high, got.mean_loss);
}

std::string Describe(const ReplayRun& run) {
  return run.format + " " + run.policy + " test " + FiniteTestName(run.rules.finite_test) +
         " rounding " + std::to_string(static_cast<int>(run.conversion.rounding)) + " overflow " +
         std::to_string(static_cast<int>(run.conversion.overflow)) + " scale " +
         HexFloat(run.scaler.scale());
}

void ExpectOnePassEqualsReplays(const TraceReader& trace, const std::vector<ReplayRun>& runs,
                                const ReplayOptions& options) {
  const std::vector<SweepOutcome> outcomes = Sweep(trace, runs, {options, {}});
  ASSERT_EQ(outcomes.size(), runs.size());
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

}  // namespace
}  // namespace dlsim
