// SPDX-License-Identifier: Apache-2.0
// A run of a sweep whose rules ask for a step's totals only: nearly all do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "sim/sweep/outcome_sum.h"
#include "sim/sweep/question_table.h"

namespace dlsim {

// Returns whether totals over tensors are all that the run asks for.
bool AsksForTotals(const ReplayRun& run, const ReplayOptions& options);

class TotalsRun {
 public:
  TotalsRun(ReplayRun run, OnFatal on_fatal, QuestionTable& table);

  bool stopped() const { return input_.has_value(); }

  enum class Remembers : uint8_t { kLastQuestion, kNothing };

  // Asks the question of the coming step.
  void Ask(Remembers remembers, QuestionTable& table);

  // Lives through the step; `input` is of all steps up to this.
  void Advance(int64_t step, QuestionTable& table, const TensorStats& input);

  SweepOutcome Outcome(const TensorStats& input) const;

 private:
  LossScaler scaler_;
  double scale_;  // of the coming step
  size_t kind_, question_ = 0;
  uint32_t asked_bits_ = 0;
  bool asked_ = false;
  OnFatal on_fatal_;
  OutcomeSum sum_;
  std::optional<TensorStats> input_;  // of the steps up to the fatal event
  std::optional<ScalerEvent> fatal_;
};

}  // namespace dlsim
