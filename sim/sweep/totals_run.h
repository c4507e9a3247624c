// SPDX-License-Identifier: Apache-2.0
// The runs of a sweep whose rules ask for a step's totals only: nearly all do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sim/sweep/outcome_sum.h"
#include "sim/sweep/question_table.h"

namespace dlsim::sim {

// Returns whether totals over tensors are all that the run asks for.
bool AsksForTotals(const ReplayRun& run, const ReplayOptions& options);

class TotalsRun {
 public:
  // `place` is that of its conversion among the windows of a step.
  TotalsRun(ReplayRun run, size_t place, OnFatal on_fatal, QuestionTable& table);

  bool stopped() const { return input_.has_value(); }

  enum class Remembers : uint8_t { kLastQuestion, kNothing };

  // Asks the question of the coming step.
  void Ask(Remembers remembers, QuestionTable& table);

  // Advances by one step; `input` is of all steps up to this, `windows` is empty if none are
  // searched.
  void Advance(int64_t step, std::span<const StepWindow* const> windows, QuestionTable& table,
               const TensorStats& input);

  SweepOutcome Outcome(const TensorStats& input, size_t steps) const {
    return sum_.Outcome(input_.value_or(input), steps);
  }

 private:
  LossScaler scaler_;
  double scale_;  // of the coming step
  size_t place_, kind_, question_ = 0;
  uint32_t asked_bits_ = 0;
  bool asked_ = false;
  OnFatal on_fatal_;
  OutcomeSum sum_;
  std::optional<TensorStats> input_;  // of the steps up to the fatal event
};

// All of them, and what they share.
class TotalsRuns {
 public:
  explicit TotalsRuns(const ReplayOptions& options)
      : on_fatal_(options.on_fatal), totals_(options.checked) {}

  QuestionTable& table() { return table_; }
  bool going() const { return going_ > 0; }

  void Add(ReplayRun run, size_t place) {
    runs_.emplace_back(std::move(run), place, on_fatal_, table_);
    ++going_;
  }

  // Gathers the questions of the coming step; returns the edges to count it at: `fixed`, if given.
  const HistogramEdges& Ask(const HistogramEdges* fixed);

  // Answers them by the totals between these edges.
  void Answer(ProfileTotals totals);

  void Advance(int64_t step, std::span<const StepWindow* const> windows);

  SweepOutcome Outcome(size_t run, size_t steps) const { return runs_[run].Outcome(input_, steps); }

 private:
  OnFatal on_fatal_;
  QuestionTable table_;
  StepTotals totals_;
  const HistogramEdges* edges_ = nullptr;  // of the coming step
  std::vector<TotalsRun> runs_;
  size_t going_ = 0;
  TensorStats input_;  // over all steps
};

}  // namespace dlsim::sim
