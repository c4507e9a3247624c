// SPDX-License-Identifier: Apache-2.0
// Simulations on their way through the steps of a source: a step is asked what a run's conversion
// does to it at the scale that the run's scaler has, and the scaler is told the outcome.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/replay.h"
#include "sim/base/named_list.h"
#include "sim/replay/harm.h"

namespace dlsim::sim {

// Returns what a run asks of a step at a scale of its own for the model.
StepQuestion QuestionOf(const ReplayRun& run, float scale);

// Returns why the tables of a profile cannot answer a run, at its first step: "the scale is no
// power of two"; nothing if they can.
std::optional<std::string> WhyNotFromTables(const ReplayRun& run, const ProfileSettings& profile);

// Returns options with which steps are tabulated for all that these runs ask of the first one.
StepOptions OptionsFor(std::span<const ReplayRun> runs, StepOptions options);

// Returns the gradients of a step that decide whether it is finite.
std::vector<size_t> CheckedIn(const Step& step, Checked checked);

// Returns what they tell a scaler, but for overflow.
ScalerInput InputOf(const StepAnswer& answer, std::span<const size_t> checked);

class ReplayRuns {
 public:
  // `options` must live as long as this.
  ReplayRuns(std::vector<ReplayRun> runs, const ReplayOptions& options);
  ~ReplayRuns();

  // Advances all runs that have not stopped by the next step. A run that tables do not answer ends
  // there if the values are not at hand; see ReplayResult::unanswered.
  void Take(size_t i, const Step& step);

  size_t size() const { return runs_.size(); }
  const ReplayRun& run(size_t r) const;
  bool AllStopped() const;

  // What happened to a run at the step that was taken last; removed, with the run's events, for
  // callers that keep sums only.
  ReplayStep TakeStep(size_t r);
  const ReplayResult& result(size_t r) const;

  // Returns the results in the order of the runs. Once.
  std::vector<ReplayResult> TakeResults();

 private:
  class Run;
  struct Shared;

  const ReplayOptions& options_;
  NoiseFinder noise_;
  std::vector<std::unique_ptr<Run>> runs_;
};

}  // namespace dlsim::sim
