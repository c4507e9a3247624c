// SPDX-License-Identifier: Apache-2.0
// Runs one scaler alone, on a given list of overflow steps: the command `dlsim scaler`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/loss_scaler.h"
#include "dlsim/sim/policies.h"
#include "dlsim/sim/replay.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

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

// The same run, interrupted and resumed.
struct ScalerTwin {
  int64_t at_step = 0;
  Kept kept = Kept::kAll;
  ScalerRun run;
  std::optional<int64_t> first_difference;
};

// How many elements of the scaled gradients lie below and above the edge of a policy's histogram.
struct HistogramCounts {
  uint64_t below = 0;
  uint64_t above = 0;
};

// What policies that look at more than overflows learn; one entry per step where not empty.
struct StepSignals {
  std::vector<float> absmax = {};  // unscaled; a step whose magnitude is not finite overflows
  std::vector<HistogramCounts> histogram = {};
};

// Runs `steps` steps; those in `overflow_steps` (ascending, no repeats) overflow. Overflow steps
// outside [0, steps) have no effect. Steps beyond a list of `signals` have magnitude 0, no counts.
// With `resume` the scaler is interrupted before that step.
ScalerRun RunScaler(ConfiguredScaler configured, int64_t steps,
                    std::span<const int64_t> overflow_steps, OnFatal on_fatal,
                    const StepSignals& signals = {}, const std::optional<Resume>& resume = {});

// Returns the first step after which an interrupted run has another scale, or which it skips
// otherwise, than the whole run; nothing if there is none.
std::optional<int64_t> FirstDifference(const ScalerRun& whole, const ScalerRun& interrupted);

// Throws Error (exit code 2) if the policy cannot run `steps` steps with these signals; appends a
// note for each that it does not look at.
void CheckSignals(std::string_view policy, const LossScaler& scaler, int64_t steps,
                  const StepSignals& signals, std::vector<std::string>& notes);

// Returns the run of a policy that refused its parameters: no scale, one fatal event at step -1.
ScalerRun RefusedRun(const PolicyRefusal& refusal);

// The lists that `dlsim scaler` takes: entries are separated by commas, blanks and newlines;
// "@FILE" reads the text from a file. These throw Error: exit code 2 for a bad entry, 3 for a file
// that cannot be read.

// Returns step numbers, ascending and without repeats.
std::vector<int64_t> ParseOverflowList(std::string_view text);

// Returns the largest magnitude of each step; "inf" and "nan" stand for one that is not finite.
std::vector<float> ParseMagnitudeList(std::string_view text);

// Returns pairs such as "1000:3", the counts below and above the edge.
std::vector<HistogramCounts> ParseHistogramList(std::string_view text);

// The document `dlsim.scaler/1` of a run that lives until it is told; scales are texts of HexFloat.
TellRows RowsOf(std::string_view policy, const ScalerRun& run,
                std::span<const ScalerTwin> twins = {}, const TellRows& config = {});
void AddScalerKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
