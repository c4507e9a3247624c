// SPDX-License-Identifier: Apache-2.0
// Runs very many simulations in one pass, for their outcomes only: skipped steps, the scale's
// path in short, and what is lost. The cost grows with the distinct questions about a step, not
// with the number of runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/sim/advice.h"
#include "dlsim/sim/replay.h"
#include "dlsim/sim/step.h"

namespace dlsim::sim {

// What a run came to. Each number equals that of the replay of this run alone.
struct SweepOutcome : PathSummary {
  TensorStats gradients;  // over all steps; without quantised sum of squares

  // What `dlsim tune` minimizes, if windows were searched: the mean over all steps of the trace of
  // what a step loses, which is all if it was skipped, not finite, or after a fatal event; else
  // nothing at a scale within the step's window, and below it the expected mean harm
  // (docs/verdict.md).
  std::optional<double> mean_loss;
  uint64_t steps_below_window = 0;   // applied, at a scale below their window
  uint64_t steps_with_headroom = 0;  // applied, at least two binades below overflow

  // Mean over applied steps of the share of the step's energy that underflows; 1 if none was
  // applied.
  double mean_energy_lost = 1;

  std::optional<ScalerEvent> fatal;  // the event that ended the run

  // Why a profile cannot answer the run; empty if it can. All else is of the steps before.
  std::string refused;
};

// What is said of the formats where values are rounded in one way.
struct SweepAdvice {
  Rounding rounding = Rounding::kNearestEven;
  Advice advice;
};

struct SweepOptions {
  ReplayOptions replay;  // `observer` is not called
  // Those of all runs, in the order of the verdicts, to have them: the scale windows of all steps
  // are searched, which takes longer than the runs.
  std::vector<std::string> formats = {};
  std::string tensors = "*";  // the pattern of those that were read
};

struct SweepRun {
  std::vector<SweepOutcome> outcomes;  // one per run, in order
  std::vector<SweepAdvice> verdicts;   // one for each way of rounding; none without windows
};

// Throws Error for a bad file.
SweepRun Sweep(const StepSource& source, std::vector<ReplayRun> runs,
               const SweepOptions& options = {});

}  // namespace dlsim::sim
