// SPDX-License-Identifier: Apache-2.0
// Runs over small traces that a test writes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dlsim/sim/replay.h"
#include "sim/policies/policy.h"
#include "sim/replay/simulation.h"
#include "tests/support/trace_builder.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::sim {

inline ReplayRun RunOf(const Format& format, LossScaler scaler, StackRules rules = {}) {
  return {.format = "format",
          .policy = "policy",
          .conversion = {format},
          .rules = rules,
          .scaler = std::move(scaler)};
}

inline ReplayRun StaticRun(const Format& format, float scale = 1, StackRules rules = {}) {
  return RunOf(format, LossScaler::Make<StaticScale>({scale}), rules);
}

inline ReplayRun PolicyRun(const std::string& policy, const std::vector<std::string>& settings,
                           const std::string& format = "fp16") {
  const SimulationRequest request = {.formats = {format},
                                     .policies = {policy},
                                     .settings = settings,
                                     .conversion = {},
                                     .finite_test = {}};
  return *PrepareRuns(request).front().start;
}

class SmallReplayTest : public TraceDirectoryTest {
 protected:
  void WriteStep(int step, const std::vector<BuiltTensor>& tensors) {
    dir_.Write("step-" + std::to_string(step) + ".safetensors", BuildSafetensors(tensors));
  }
  ReplayResult RunOne(const ReplayRun& run, const ReplayOptions& options = {},
                      int64_t accumulate_steps = 1) {
    return Replay(TraceSteps(Open(), accumulate_steps), {run}, options).front();
  }
};

}  // namespace dlsim::sim
