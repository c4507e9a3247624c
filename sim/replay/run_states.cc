// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/run_states.h"

#include <algorithm>
#include <utility>

namespace dlsim::sim {

template <class Predicate>
bool RunStates::AnyGoing(const Predicate& holds) const {
  return std::any_of(states_.begin(), states_.end(),
                     [&](const RunState& state) { return !state.stopped() && holds(state); });
}

bool RunStates::AllStopped() const {
  return !AnyGoing([](const RunState&) { return true; });
}

void RunStates::Ask(const GradientStep& step, StepQuestions& questions) {
  const bool by_tensor = AnyGoing([](const RunState& state) {
    return state.run().rules.granularity != ScaleGranularity::kModel;
  });
  const bool looks_ahead = AnyGoing([](const RunState& state) { return state.looks_ahead(); });
  std::vector<StepTensor> tensors;
  if (by_tensor) tensors = step.Tensors();
  std::vector<GradientSpread> spreads;
  if (looks_ahead) spreads = step.Spreads();
  const TraceStep* const recorded = step.Recorded();
  const bool in_parts = recorded != nullptr && recorded->recordings.size() > 1;
  question_of_run_.clear();
  for (RunState& state : states_) {
    question_of_run_.push_back(0);
    if (state.stopped()) continue;
    StepQuestion question = state.Prepare(step.number(), tensors, spreads);
    if (in_parts || question.detail) question.asked = Asked::kAll;
    question_of_run_.back() = questions.Add(std::move(question));
  }
}

std::vector<size_t> RunStates::LastToAsk(size_t questions) const {
  std::vector<size_t> last(questions);
  for (size_t r = 0; r < states_.size(); ++r) {
    if (!states_[r].stopped()) last[question_of_run_[r]] = r;
  }
  return last;
}

std::vector<bool> RunStates::NoiseIn(const StepMeasurement& measured, QuestionTotals& totals) {
  for (size_t r = 0; r < states_.size(); ++r) {
    if (states_[r].stopped()) continue;
    return noise_.Find(measured.tensors, totals.Of(question_of_run_[r]));
  }
  return {};
}

}  // namespace dlsim::sim
