// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/run_states.h"

#include <algorithm>
#include <utility>

namespace dlsim::sim {
namespace {

// Of runs that wait, whatever memory holds: a pass over very many tensors takes as long as some
// questions.
constexpr size_t kFewestAtOnce = 8;

}  // namespace

template <class Predicate>
bool RunStates::AnyGoing(const Predicate& holds) const {
  return std::any_of(states_.begin(), states_.end(),
                     [&](const RunState& state) { return !state.stopped() && holds(state); });
}

void RunStates::Add(ReplayRun run) {
  const auto alike = std::ranges::find_if(
      states_, [&](const RunState& state) { return state.run().conversion == run.conversion; });
  const auto conversion = static_cast<size_t>(alike - states_.begin());
  states_.emplace_back(std::move(run), conversion, options_);
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
  questions_.clear();
  for (RunState& state : states_) {
    questions_.emplace_back();
    if (state.stopped()) continue;
    StepQuestion& question = questions_.back();
    question = state.Prepare(step.number(), tensors, spreads);
    if (in_parts || question.detail) question.asked = Asked::kAll;
  }
  question_of_run_.assign(states_.size(), 0);
  asked_ = 0;
  AskNext(questions);
}

void RunStates::AskNext(StepQuestions& questions) {
  for (bool any = false; asked_ < states_.size(); ++asked_) {
    if (states_[asked_].stopped()) continue;
    StepQuestion& question = questions_[asked_];
    if (any && questions.IsFull() && !questions.Has(question)) return;
    question_of_run_[asked_] = questions.Add(std::move(question));
    any = true;
  }
}

StepAnswers RunStates::MeasureNext(const GradientStep& step, size_t tensors) {
  const size_t at_once = QuestionsAtOnce(tensors, options_.step.memory_bytes);
  StepQuestions questions(std::max(kFewestAtOnce, at_once));
  // What the first answers to a step leave open is measured again; here nobody looks at that.
  for (size_t r = asked_; r < questions_.size(); ++r) questions_[r].asked = Asked::kAll;
  AskNext(questions);
  return step.Measure(questions.all(), options_.step).answers;
}

std::vector<size_t> RunStates::LastToAsk(size_t first, size_t questions) const {
  std::vector<size_t> last(questions);
  for (size_t r = first; r < asked_; ++r) {
    if (!states_[r].stopped()) last[question_of_run_[r]] = r;
  }
  return last;
}

std::vector<bool> RunStates::NoiseIn(const GradientStep& step, const StepMeasurement& measured,
                                     QuestionTotals& totals) {
  for (size_t r = 0; r < asked_; ++r) {
    if (states_[r].stopped()) continue;
    return noise_.Find(step, measured.tensors, totals.Of(question_of_run_[r]));
  }
  return {};
}

}  // namespace dlsim::sim
