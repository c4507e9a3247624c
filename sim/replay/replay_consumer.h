// SPDX-License-Identifier: Apache-2.0
// Runs on their way through the steps of a source.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "dlsim/sim/replay.h"
#include "sim/replay/forward_counter.h"
#include "sim/replay/run_states.h"
#include "sim/replay/step_loop.h"

namespace dlsim::sim {

class ReplayConsumer final : public StepConsumer {
 public:
  ReplayConsumer(std::vector<ReplayRun> runs, const ReplayOptions& options)
      : states_(options), observer_(options.observer) {
    forward_.resize(runs.size());
    for (ReplayRun& run : runs) states_.Add(std::move(run));
  }

  bool Ask(const GradientStep& step, StepQuestions& questions) override {
    states_.Ask(step, questions);
    for (size_t r = 0; r < states_.size(); ++r) {
      const ReplayRun& run = states_[r].run();
      forward_[r].Rest();
      if (states_[r].stopped() || run.tensor_records != TensorRecords::kKept) continue;
      questions.AddChannels();
      forward_[r].Ask(run.conversion, questions);
    }
    return true;
  }

  void Advance(size_t i, const GradientStep& step, const MeasuredStep& measured) override {
    ObservedStep observed = {i, measured.gradients, measured.forward, {}};
    const auto on_advanced = [&](size_t r, const auto& answers) {
      const RunState& state = states_[r];
      forward_[r].Advance(step.number(), measured.forward);
      observed.runs.push_back({state.run(), answers, state.result().steps.back(), r,
                               forward_[r].Answers(measured.forward)});
    };
    const auto on_measured = [&] {
      if (observer_) observer_(observed);
      observed.runs.clear();
    };
    states_.Advance(step, measured.gradients, on_advanced, on_measured);
  }

  std::vector<ReplayResult> TakeResults() {
    std::vector<ReplayResult> results;
    for (size_t r = 0; r < states_.size(); ++r) {
      results.push_back(states_[r].TakeResult());
      results.back().forward = forward_[r].Take();
    }
    return results;
  }

 private:
  RunStates states_;
  std::vector<ForwardCounter> forward_;  // by run
  const std::function<void(const ObservedStep&)>& observer_;
};

}  // namespace dlsim::sim
