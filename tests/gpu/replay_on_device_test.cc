// SPDX-License-Identifier: Apache-2.0
// Replays and sweeps of whole traces give the same bytes wherever they are computed.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "dlsim/gpu/devices.h"
#include "dlsim/sim/sweep.h"
#include "emulation.h"
#include "sim/base/json_value.h"
#include "sim/base/output_file.h"
#include "sim/replay/replay_csv.h"
#include "sim/replay/replay_json.h"
#include "sim/replay/simulation.h"
#include "sim/replay/trace_source.h"
#include "src/device/compute_device.h"
#include "tests/gpu/device_traces.h"
#include "tests/support/profile_test_util.h"

namespace dlsim::sim {
namespace {

// Policies that scale the model, each layer and each tensor.
SimulationRequest Request() {
  SimulationRequest request = {.formats = {"fp16", "cb16"},
                               .policies = {"cerebras", "torch", "adaloss", "fairscale"},
                               .settings = {},
                               .conversion = {},
                               .finite_test = {}};
  return request;
}

class ReplayOnDevice : public testing::TestWithParam<std::string> {
 protected:
  ReplayOnDevice() {
    emulation::Reset();
    device_ = gpu::OpenDevice(0);
  }

  // Returns what `dlsim replay` writes as CSV and as JSON.
  std::string Written(const SimulationRequest& request, ReplayOptions options) {
    const TraceReader trace = OpenTrace({kTraces + GetParam()});
    const TraceSource source(trace, options.accumulate_steps);
    std::vector<SimulationRun> runs = PrepareRuns(request);
    OutputFile csv(dir_.path() + "/csv"), json(dir_.path() + "/json");
    options.observer = [&](const ObservedStep& step) { WriteCsvRows(step, {}, csv); };
    Simulate(source, options, runs);
    WriteReplayJson(source.facts(), {}, {}, {}, {}, runs, json);
    csv.Commit();
    json.Commit();
    return ReadBytes(dir_.path() + "/csv") + ReadBytes(dir_.path() + "/json");
  }

  void ExpectSame(const SimulationRequest& request, ReplayOptions options) {
    for (const Accumulation accumulation : kAccumulations) {
      const bool has_micro_steps = kTraces + GetParam() == kAccumulated;
      if (!has_micro_steps && accumulation != Accumulation{}) continue;  // it is the same
      options.step = OptionsOf(accumulation);
      const std::string expected = Written(request, options);
      EXPECT_GT(expected.size(), 1000u);
      options.step.device = device_.get();
      EXPECT_TRUE(Written(request, options) == expected)
          << "accumulation " << static_cast<int>(accumulation);
    }
  }

  TempDir dir_;
  std::unique_ptr<ComputeDevice> device_;
};

// The emulation takes a minute for the whole one.
std::vector<std::string> Traces() {
  std::vector<std::string> traces = {"lm-kjv-accum-cut", "lm-trouble-cut", "reg-diabetes-cut"};
  if (!emulation::kIsEmulated) traces.push_back("cnn-digits");
  return traces;
}

INSTANTIATE_TEST_SUITE_P(Traces, ReplayOnDevice, testing::ValuesIn(Traces()),
                         [](const auto& trace) {
                           std::string name = trace.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(ReplayOnDevice, WritesTheSameBytes) { ExpectSame(Request(), {}); }

TEST_P(ReplayOnDevice, WritesTheSameBytesWithClippingAndStochasticRounding) {
  SimulationRequest request = Request();
  request.formats = {"fp16"};
  request.policies = {"cerebras", "adaloss"};
  request.conversion.rounding = Rounding::kStochastic;
  request.clipping.max_value = 1e-3;
  ExpectSame(request, {});
}

TEST_P(ReplayOnDevice, GivesTheSameOutcomesOfASweep) {
  const TraceReader trace = OpenTrace({kTraces + GetParam()});
  std::vector<ReplayRun> runs;
  for (const SimulationRun& run : PrepareRuns(Request())) runs.push_back(*run.start);
  SweepOptions options;
  const std::vector<SweepOutcome> expected = Sweep(trace, runs, options);
  options.replay.step.device = device_.get();
  const std::vector<SweepOutcome> got = Sweep(trace, runs, options);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].skipped_steps, expected[i].skipped_steps);
    EXPECT_EQ(got[i].final_scale, expected[i].final_scale);
    EXPECT_EQ(got[i].mean_loss, expected[i].mean_loss);
    EXPECT_EQ(got[i].gradients.underflow, expected[i].gradients.underflow);
    EXPECT_EQ(got[i].gradients.sum_of_squares, expected[i].gradients.sum_of_squares);
  }
  if (emulation::kIsEmulated) {
    EXPECT_GT(emulation::Counts().launches, 0u);
  }
}

}  // namespace
}  // namespace dlsim::sim
