// SPDX-License-Identifier: Apache-2.0
// Runs that take the same steps: those with the same question share an answer.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/replay/harm.h"
#include "sim/replay/run_state.h"
#include "sim/replay/step_loop.h"

namespace dlsim::sim {

// The counters of each tensor over the parts of a step, by question: runs that ask alike share
// them.
class QuestionTotals {
 public:
  explicit QuestionTotals(const StepMeasurement& measured)
      : measured_(measured), of_question_(measured.answers.size()) {}

  const std::vector<TensorStats>& Of(size_t question) {
    std::vector<TensorStats>& totals = of_question_[question];
    if (totals.empty()) totals = TotalsOf(measured_.answers[question]);
    return totals;
  }

  // Frees them.
  void Drop(size_t question) { of_question_[question] = {}; }

 private:
  const StepMeasurement& measured_;
  std::vector<std::vector<TensorStats>> of_question_;
};

class RunStates {
 public:
  explicit RunStates(const ReplayOptions& options) : options_(options) {}  // must live as long

  void Add(ReplayRun run) { states_.emplace_back(std::move(run), options_); }

  size_t size() const { return states_.size(); }
  RunState& operator[](size_t run) { return states_[run]; }
  bool AllStopped() const;

  // Adds the questions of the runs that go on.
  void Ask(const GradientStep& step, StepQuestions& questions);

  // Advances the runs that have not stopped by one step, and calls on_advanced(run, its answers)
  // after each.
  template <class OnAdvanced>
  void Advance(int64_t step, const StepMeasurement& measured, const OnAdvanced& on_advanced) {
    QuestionTotals totals(measured);
    const std::vector<bool> noise = NoiseIn(measured, totals);
    const std::vector<size_t> last_to_ask = LastToAsk(measured.answers.size());
    for (size_t r = 0; r < states_.size(); ++r) {
      if (states_[r].stopped()) continue;
      const size_t question = question_of_run_[r];
      const std::vector<TensorAnswer>& answers = measured.answers[question];
      states_[r].Advance({measured, answers, totals.Of(question)}, noise, step);
      on_advanced(r, answers);
      if (last_to_ask[question] == r) totals.Drop(question);
    }
  }

 private:
  template <class Predicate>
  bool AnyGoing(const Predicate& holds) const;

  // The last run that asks each question.
  std::vector<size_t> LastToAsk(size_t questions) const;

  // Which tensors are but noise: no question changes that.
  std::vector<bool> NoiseIn(const StepMeasurement& measured, QuestionTotals& totals);

  const ReplayOptions& options_;
  NoiseFinder noise_;
  std::vector<RunState> states_;
  std::vector<size_t> question_of_run_;  // unused where a run has stopped
};

}  // namespace dlsim::sim
