// SPDX-License-Identifier: Apache-2.0
// One `dlsim replay`: what was asked, and what came out; the writers and the report read it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/policies.h"
#include "dlsim/sim/replay.h"
#include "sim/replay/heat_map.h"

namespace dlsim::sim {

// One run of a simulation. A policy that refused its parameters has an event and no result.
struct SimulationRun {
  std::string format;
  std::string policy;
  std::vector<NamedValue> parameters;
  std::vector<std::string> notes;
  StackRules rules;
  std::optional<Resume> resume;             // an interrupted twin of the whole run before it
  std::optional<int64_t> first_difference;  // of a twin: the first step that goes another way
  std::optional<ReplayRun> start;           // as it began; empty if the policy refused
  ReplayResult result;
  std::optional<HeatMap> heat_map;  // if asked for
  std::string config = {};          // the configuration it is of, where several are compared
};

// Returns "fp16 torch", with the name of its configuration before it where there are several.
std::string RunLabel(const SimulationRun& run);

// Returns the policy that those train with who train in a format: Cerebras' in CB16, none, which is
// scale 1, where a format has float32's exponents, and PyTorch's in fp16 and others.
std::string_view OwnPolicyOf(const std::string& format);

struct SimulationRequest {
  std::vector<std::string> formats;
  std::vector<std::string> policies;       // empty: of each format its own
  std::vector<std::string> settings;       // KEY=VALUE, or POLICY.KEY=VALUE, which wins, for one
  Conversion conversion;                   // its format is filled in per run
  std::optional<FiniteTest> finite_test;   // instead of each policy's own
  Clipping clipping = {};                  // its rule is each policy's own ...
  std::optional<ClipRule> clip_rule = {};  // ... but for this
  std::vector<std::string> states = {};    // KEY=VALUE of a checkpoint to start from, as settings
  std::optional<int64_t> resume_at = {};   // adds interrupted twins that keep scale or nothing
};

// Makes one run per format and policy. Throws Error (exit code 2) for unknown names and values, and
// for clipping by both norm and value.
std::vector<SimulationRun> PrepareRuns(const SimulationRequest& request);

// Returns the first step from which an interrupted run goes another way than its uninterrupted
// twin: scale or skipping; nothing if it never does.
std::optional<int64_t> FirstDifference(const ReplayResult& whole, const ReplayResult& interrupted);

// Replays all runs that were not refused and stores their results, and their heat maps of at most
// `heat_map_bins` bins if given. Passes each step to `also`, if any, after the runs took it: then
// the steps go on when all runs have stopped.
void Simulate(const StepSource& source, ReplayOptions options, std::vector<SimulationRun>& runs,
              std::optional<uint64_t> heat_map_bins = std::nullopt,
              const std::function<void(size_t i, const Step& step)>& also = {});

}  // namespace dlsim::sim
