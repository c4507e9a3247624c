// SPDX-License-Identifier: Apache-2.0
// The runs of a sweep that ask about single tensors or elements, and live through each step as in a
// replay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/run_state.h"
#include "sim/sweep/outcome_sum.h"

namespace dlsim {

class GeneralRuns {
 public:
  explicit GeneralRuns(const ReplayOptions& options) : options_(options) {}  // must live as long

  void Add(ReplayRun run) { runs_.push_back({RunState(std::move(run), options_), {}, {}, {}}); }

  bool AllStopped() const;

  // Asks, measures and advances all runs that go on.
  void Advance(const GradientStep& step, const StepOptions& step_options);

  SweepOutcome Outcome(size_t run) const;

 private:
  struct Run {
    RunState state;
    OutcomeSum sum;
    TensorStats input;
    std::optional<ScalerEvent> fatal;
  };
  std::vector<size_t> Ask(const GradientStep& step, std::vector<StepQuestion>& questions);
  static void Add(Run& run);

  const ReplayOptions& options_;
  std::vector<Run> runs_;
};

}  // namespace dlsim
