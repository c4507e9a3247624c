// SPDX-License-Identifier: Apache-2.0
// Runs that take the same steps: those with the same question share an answer.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "sim/replay/harm.h"
#include "sim/replay/run_state.h"
#include "sim/replay/step_loop.h"

namespace dlsim::sim {

// The answers to the questions about a step.
using StepAnswers = std::vector<std::vector<TensorAnswer>>;

// The counters of each tensor over the parts of a step, by question: runs that ask alike share
// them.
class QuestionTotals {
 public:
  explicit QuestionTotals(const StepAnswers& answers)
      : answers_(answers), of_question_(answers.size()) {}

  const std::vector<TensorStats>& Of(size_t question) {
    std::vector<TensorStats>& totals = of_question_[question];
    if (totals.empty()) totals = TotalsOf(answers_[question]);
    return totals;
  }

  // Frees them.
  void Drop(size_t question) { of_question_[question] = {}; }

 private:
  const StepAnswers& answers_;
  std::vector<std::vector<TensorStats>> of_question_;
};

class RunStates {
 public:
  explicit RunStates(const ReplayOptions& options) : options_(options) {}  // must live as long

  void Add(ReplayRun run);

  size_t size() const { return states_.size(); }
  RunState& operator[](size_t run) { return states_[run]; }
  bool AllStopped() const;

  // Adds the questions of the runs that go on, from the first to that where they are full.
  void Ask(const GradientStep& step, StepQuestions& questions);

  // Advances all runs that have not stopped by one step, which is measured again for those whose
  // questions did not fit. Calls on_advanced(run, its answers) after each run, and on_measured()
  // after runs that were measured together, before their answers are freed.
  template <class OnAdvanced, class OnMeasured>
  void Advance(const GradientStep& step, const StepMeasurement& measured,
               const OnAdvanced& on_advanced, const OnMeasured& on_measured) {
    QuestionTotals totals(measured.answers);
    const std::vector<bool> noise = NoiseIn(step, measured, totals);
    SharedLosses losses;
    const SharedStep shared = {noise, noise_.places(), losses};
    const auto advance = [&](size_t first, const StepAnswers& answers, QuestionTotals& of_answers) {
      const std::vector<size_t> last_to_ask = LastToAsk(first, answers.size());
      for (size_t r = first; r < asked_; ++r) {
        if (states_[r].stopped()) continue;
        const size_t question = question_of_run_[r];
        states_[r].Advance({measured, answers[question], of_answers.Of(question)}, shared,
                           step.number());
        on_advanced(r, answers[question]);
        if (last_to_ask[question] == r) of_answers.Drop(question);
      }
      on_measured();
    };
    advance(0, measured.answers, totals);
    while (asked_ < states_.size()) {
      const size_t first = asked_;
      const StepAnswers answers = MeasureNext(step, measured.tensors.size());
      QuestionTotals of_answers(answers);
      advance(first, answers, of_answers);
    }
  }

 private:
  template <class Predicate>
  bool AnyGoing(const Predicate& holds) const;

  // Asks for the runs from asked_ on until the questions are full, for one of them in any case.
  void AskNext(StepQuestions& questions);
  StepAnswers MeasureNext(const GradientStep& step, size_t tensors);

  // The last run that asks each question, of those from `first` on that were asked.
  std::vector<size_t> LastToAsk(size_t first, size_t questions) const;

  // Which tensors are but noise: no question changes that.
  std::vector<bool> NoiseIn(const GradientStep& step, const StepMeasurement& measured,
                            QuestionTotals& totals);

  const ReplayOptions& options_;
  NoiseFinder noise_;
  std::vector<RunState> states_;
  // Of this step; unused where a run has stopped.
  std::vector<StepQuestion> questions_;  // of the runs from asked_ on
  std::vector<size_t> question_of_run_;  // of the runs before it: places of their answers
  size_t asked_ = 0;
};

}  // namespace dlsim::sim
