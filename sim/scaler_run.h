// SPDX-License-Identifier: Apache-2.0
// Runs one scaler alone, on a given list of overflow steps: the command `dlsim scaler`.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dlsim/loss_scaler.h"
#include "sim/policies/registry.h"

namespace dlsim {

// `count` steps in a row after which the scale was `scale`.
struct ScaleRun {
  double scale = 0;
  int64_t count = 0;
};

struct ScalerRun {
  std::vector<NamedValue> parameters;
  std::optional<double> scale_init;  // of step 0; none = the policy refused its parameters
  std::vector<ScaleRun> scale;       // after each step, run-length encoded
  std::vector<int64_t> skipped;      // steps on which the optimizer does not step
  std::vector<ScalerEvent> events;   // the first 100,000
  uint64_t event_count = 0;          // of all events
  std::vector<NamedValue> state;     // after the last step
  int64_t steps_run = 0;             // includes the step of a fatal event that stopped the run
};

// Runs `steps` steps; those in `overflow_steps` (ascending, no repeats) overflow. Overflow steps
// outside [0, steps) have no effect.
ScalerRun RunScaler(ConfiguredScaler configured, int64_t steps,
                    std::span<const int64_t> overflow_steps, OnFatal on_fatal);

// Returns the run of a policy that refused its parameters: no scale, one fatal event at step -1.
ScalerRun RefusedRun(const PolicyRefusal& refusal);

// Returns the document `dlsim.scaler/1`; scales are texts of HexFloat.
nlohmann::ordered_json ToJson(std::string_view policy, const ScalerRun& run);

// Returns the step numbers of a text, separated by commas, blanks and newlines, ascending and
// without repeats; "@FILE" reads the text from a file. Throws Error: exit code 2 for a bad number,
// 3 for a file that cannot be read.
std::vector<int64_t> ParseOverflowList(std::string_view text);

}  // namespace dlsim
