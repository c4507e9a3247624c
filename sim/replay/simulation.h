// SPDX-License-Identifier: Apache-2.0
// One `dlsim replay`: what was asked, and what came out; the writers and the report read it. The
// map of what a run lost, tensor by tensor, over bins of neighboring steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/sim/policies.h"
#include "dlsim/sim/replay.h"

namespace dlsim::sim {

// Steps that share a column of the map.
struct StepBin {
  int64_t first_step = 0, last_step = 0;  // recorded numbers
  uint64_t steps = 0;
  uint64_t skipped_steps = 0;
};

struct HeatMapRow {
  std::string name;
  Role role = Role::kGrad;
  std::vector<TensorStats> cells;  // per bin, over its steps and micro-steps
};

// The map of one run. Bins hold as many steps as their neighbors, or one more.
class HeatMap {
 public:
  // `steps` are those of the source; at most `max_bins` bins, at least one.
  explicit HeatMap(size_t steps = 1, uint64_t max_bins = 1);

  // Adds the step at position `index` of the source; steps come in order.
  void Add(size_t index, const ReplayStep& record, const Step& step, const StepAnswer& answers);

  // Bins that have steps: a run that stopped early has fewer.
  const std::vector<StepBin>& bins() const { return bins_; }
  const std::vector<HeatMapRow>& rows() const { return rows_; }  // in order of first appearance

 private:
  HeatMapRow& RowOf(const TensorInfo& tensor, size_t position);

  size_t steps_, bin_count_;
  std::vector<StepBin> bins_;
  std::vector<HeatMapRow> rows_;
  std::map<std::pair<std::string, Role>, size_t> row_of_;  // a name may have another role later
};

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
