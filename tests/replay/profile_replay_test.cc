// SPDX-License-Identifier: Apache-2.0
// The replay of a profile is that of its trace, in all that it says, or is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/profile.h"
#include "dlsim/sim/policies.h"
#include "dlsim/sim/replay.h"
#include "sim/replay/simulation.h"
#include "sim/replay/step_sources.h"
#include "tests/support/same_stats.h"
#include "tests/support/small_replay.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::sim {
namespace {

void ExpectSame(const HarmOverSteps& got, const HarmOverSteps& expected) {
  EXPECT_EQ(got.sum, expected.sum);
  EXPECT_EQ(got.worst, expected.worst);
  EXPECT_EQ(got.steps, expected.steps);
}

void ExpectSame(const StepHarm& got, const StepHarm& expected) {
  EXPECT_EQ(got.mean, expected.mean);
  EXPECT_EQ(got.worst, expected.worst);
  EXPECT_EQ(got.worst_tensor, expected.worst_tensor);
}

void ExpectSame(const ReplayStep& got, const ReplayStep& expected) {
  SCOPED_TRACE("step " + std::to_string(expected.step));
  EXPECT_EQ(got.step, expected.step);
  EXPECT_EQ(got.scale, expected.scale);
  EXPECT_EQ(got.next_scale, expected.next_scale);
  EXPECT_EQ(got.finite, expected.finite);
  EXPECT_EQ(got.skipped, expected.skipped);
  EXPECT_PRED2(SameDigits, got.grad_norm.value_or(-1), expected.grad_norm.value_or(-1));
  EXPECT_EQ(got.cause, expected.cause);
  EXPECT_EQ(got.cause_tensor, expected.cause_tensor);
  EXPECT_EQ(got.lower_scale_helps, expected.lower_scale_helps);
  EXPECT_EQ(got.converted_norm, expected.converted_norm);
  EXPECT_EQ(got.clip_coefficient, expected.clip_coefficient);
  EXPECT_EQ(got.clipped, expected.clipped);
  EXPECT_EQ(got.optimizers.size(), expected.optimizers.size());
  ExpectSame(got.gradients, expected.gradients);
  ExpectSame(got.activations, expected.activations);
  ExpectSame(got.harm, expected.harm);
  ExpectSame(got.activation_harm, expected.activation_harm);
}

void ExpectSame(const ReplaySummary& got, const ReplaySummary& expected) {
  SCOPED_TRACE("summary");
  EXPECT_EQ(got.steps, expected.steps);
  EXPECT_EQ(got.skipped_steps, expected.skipped_steps);
  EXPECT_EQ(got.longest_skip_run, expected.longest_skip_run);
  EXPECT_EQ(got.nonfinite_steps, expected.nonfinite_steps);
  EXPECT_EQ(got.hopeless_steps, expected.hopeless_steps);
  EXPECT_EQ(got.first_applied_step, expected.first_applied_step);
  EXPECT_EQ(got.final_scale, expected.final_scale);
  EXPECT_EQ(got.min_scale, expected.min_scale);
  EXPECT_EQ(got.max_scale, expected.max_scale);
  EXPECT_EQ(got.worst_step_energy_lost, expected.worst_step_energy_lost);
  EXPECT_EQ(got.skip_run, expected.skip_run);
  EXPECT_EQ(got.clipped_steps, expected.clipped_steps);
  ExpectSame(got.gradients, expected.gradients);
  ExpectSame(got.activations, expected.activations);
  ExpectSame(got.harm, expected.harm);
  ExpectSame(got.activation_harm, expected.activation_harm);
  ExpectSame(got.tensor_harm, expected.tensor_harm);
}

void ExpectSame(const ReplayTensor& got, const ReplayTensor& expected) {
  SCOPED_TRACE(expected.name);
  EXPECT_EQ(got.name, expected.name);
  EXPECT_EQ(got.role, expected.role);
  ExpectSame(got.stats, expected.stats);
  EXPECT_EQ(got.worst_step_energy_lost, expected.worst_step_energy_lost);
  ExpectSame(got.harm, expected.harm);
  EXPECT_EQ(got.channels.channels, expected.channels.channels);
  ExpectSame(got.channels.mean, expected.channels.mean);
  EXPECT_EQ(got.channels.worst, expected.channels.worst);
  EXPECT_EQ(got.nonzero_steps, expected.nonzero_steps);
  EXPECT_EQ(got.noise_steps, expected.noise_steps);
  EXPECT_EQ(got.first_overflow_step, expected.first_overflow_step);
  ASSERT_EQ(got.scales.has_value(), expected.scales.has_value());
  if (!got.scales) return;
  EXPECT_EQ(got.scales->min, expected.scales->min);
  EXPECT_EQ(got.scales->max, expected.scales->max);
  EXPECT_EQ(got.scales->final, expected.scales->final);
}

void ExpectSame(const std::vector<ReplayTensor>& got, const std::vector<ReplayTensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ExpectSame(got[i], expected[i]);
}

void ExpectSame(const ReplayResult& got, const ReplayResult& expected) {
  ASSERT_EQ(got.steps.size(), expected.steps.size());
  for (size_t i = 0; i < got.steps.size(); ++i) ExpectSame(got.steps[i], expected.steps[i]);
  ExpectSame(got.summary, expected.summary);
  ExpectSame(got.tensors, expected.tensors);
  ExpectSame(got.forward.outputs, expected.forward.outputs);
  ExpectSame(got.forward.values, expected.forward.values);
  ExpectSame(got.forward.tensors, expected.forward.tensors);
  ASSERT_EQ(got.events.size(), expected.events.size());
  for (size_t i = 0; i < got.events.size(); ++i) {
    EXPECT_EQ(got.events[i].step, expected.events[i].step);
    EXPECT_EQ(got.events[i].type, expected.events[i].type);
    EXPECT_EQ(got.events[i].message, expected.events[i].message);
    EXPECT_EQ(got.events[i].fatal, expected.events[i].fatal);
  }
  EXPECT_EQ(got.stopped_at, expected.stopped_at);
}

// A profile of a trace, in a folder of its own.
class WrittenProfile {
 public:
  WrittenProfile(const TraceReader& trace, const ReplayOptions& options,
                 int64_t accumulate_steps = 1) {
    ProfileSettings settings;
    settings.mantissas = options.step.mantissas;
    settings.accumulation = options.step.accumulation;
    settings.accumulate_steps = accumulate_steps;
    settings.description = trace.description();
    const std::string folder = dir_.path() + "/profile";
    const ProfileWriter writer(folder, settings, ProfileWriter::Existing::kContinue);
    const StepSource steps = TraceSteps(trace, accumulate_steps);
    for (size_t i = 0; i < steps.step_count; ++i) {
      writer.Write(steps.load(i, options.step)->tables());
    }
    reader_ = ProfileReader::Open(folder);
  }

  StepSource Steps(const std::string& tensors = "*") const {
    return ProfileSteps(*reader_, tensors);
  }

 private:
  TempDir dir_;
  std::optional<ProfileReader> reader_;
};

// Compares each run alone; returns how many the profile does not answer.
size_t CompareRuns(const TraceReader& trace, const std::vector<ReplayRun>& runs,
                   const ReplayOptions& options, int64_t accumulate_steps = 1) {
  const WrittenProfile profile(trace, options, accumulate_steps);
  const StepSource source = profile.Steps();
  const std::vector<ReplayResult> expected =
      Replay(TraceSteps(trace, accumulate_steps), runs, options);
  size_t refused = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    SCOPED_TRACE(runs[r].format + " " + runs[r].policy);
    try {
      const ReplayResult result = Replay(source, {runs[r]}, options).front();
      if (result.unanswered) {
        ++refused;
      } else {
        ExpectSame(result, expected[r]);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
      ++refused;
    }
  }
  return refused;
}

ReplayOptions OptionsAt2e15() {
  ReplayOptions options;
  options.step.mantissas = {0x1.c6bf52p+0f};
  return options;
}

std::vector<ReplayRun> RunsOfAllPolicies() {
  const SimulationRequest request = {.formats = {"fp16", "bf16", "cb16"},
                                     .policies = {"all"},
                                     .settings = {},
                                     .conversion = {},
                                     .finite_test = {}};
  std::vector<ReplayRun> runs;
  for (const SimulationRun& run : PrepareRuns(request)) {
    if (run.start) runs.push_back(*run.start);
  }
  return runs;
}

TEST(ProfileReplay, IsThatOfTheTraceForEveryPolicy) {
  const std::vector<ReplayRun> runs = RunsOfAllPolicies();
  for (const std::string& path : {kAccumulated, kSingle}) {
    SCOPED_TRACE(path);
    EXPECT_LT(CompareRuns(OpenTrace({path}), runs, OptionsAt2e15()), runs.size() / 4);
  }
}

TEST(ProfileReplay, IsThatOfTheTraceAtEveryPowerOfTwoInEveryMode) {
  std::vector<ReplayRun> runs;
  for (const FormatRow& format : kFormats) {
    for (int exponent = -20; exponent <= 60; exponent += 10) {
      for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
        for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
          // The norm of clamped gradients, where those recorded overflow it, is not in a table.
          const FiniteTest test =
              overflow == Overflow::kSaturate ? FiniteTest::kElementwise : FiniteTest::kGlobalNorm;
          ReplayRun run =
              StaticRun(format.format, std::ldexp(1.0f, exponent), {.finite_test = test});
          run.conversion.overflow = overflow;
          run.conversion.subnormals = subnormals;
          run.format = std::string(format.name);
          run.policy = "2^" + std::to_string(exponent);
          runs.push_back(run);
        }
      }
    }
  }
  for (const std::string& path : {kAccumulated, kSingle}) {
    SCOPED_TRACE(path);
    EXPECT_LT(CompareRuns(OpenTrace({path}), runs, {}), runs.size() / 2);
  }
}

TEST(ProfileReplay, FollowsTheAccumulationItWasMadeWith) {
  const std::vector<ReplayRun> runs = {StaticRun(kFp16, 1), StaticRun(kBf16, 1024)};
  ReplayOptions sum_first;
  sum_first.step.accumulation = Accumulation::kSumThenQuantize;
  EXPECT_EQ(CompareRuns(OpenTrace({kAccumulated}), runs, sum_first), 0u);
  EXPECT_EQ(CompareRuns(OpenTrace({kSingle}), runs, {}, 2), 0u);
}

TEST(ProfileReplay, OfSomeTensorsIsThatOfATraceReadSo) {
  TraceOptions options;
  options.tensors = "*weight*";
  const TraceReader all = OpenTrace({kSingle}), some = OpenTrace({kSingle}, options);
  const std::vector<ReplayRun> runs = {StaticRun(kFp16, 1024)};
  const WrittenProfile profile(all, {});
  ExpectSame(Replay(profile.Steps(options.tensors), runs, {}).front(),
             Replay(TraceSteps(some), runs, {}).front());
}

}  // namespace
}  // namespace dlsim::sim
