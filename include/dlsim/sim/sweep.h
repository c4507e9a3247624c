// SPDX-License-Identifier: Apache-2.0
// Runs very many simulations in one pass, for their outcomes only: skipped steps, the scale's
// path in short, and what is lost. The cost grows with the distinct thresholds of a step, not with
// the number of runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/profile_file.h"
#include "dlsim/sim/replay.h"
#include "dlsim/trace.h"

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

  // False if the ladder of the profile does not have the thresholds; then the counters of
  // `gradients` are the middle of brackets, and mean_energy_lost is within these. Also false if a
  // profile does not determine whether a norm or sum overflows; then all figures are the likeliest.
  bool exact = true;
  Bracket<double> energy_bracket = {1, 1};

  std::optional<ScalerEvent> fatal;  // the event that ended the run
};

// Whether the scale windows of all steps are searched, which takes longer than the runs.
enum class SearchWindows : uint8_t { kNo, kYes };

struct SweepOptions {
  ReplayOptions replay;                                  // `observer` is not called
  std::function<void(size_t steps_done)> progress = {};  // may be empty
  std::string tensors = "*";  // of a profile: those whose name matches this pattern (fnmatch)
  SearchWindows windows = SearchWindows::kNo;
};

// Returns one outcome per run, in order. As for Replay, the source has accumulated the steps
// already. Throws Error for a bad trace or profile.
std::vector<SweepOutcome> Sweep(const GradientSource& source, std::vector<ReplayRun> runs,
                                const SweepOptions& options);
std::vector<SweepOutcome> Sweep(const TraceReader& trace, std::vector<ReplayRun> runs,
                                const SweepOptions& options);
std::vector<SweepOutcome> Sweep(const ProfileReader& profile, std::vector<ReplayRun> runs,
                                const SweepOptions& options);

}  // namespace dlsim::sim
