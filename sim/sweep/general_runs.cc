// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/general_runs.h"

#include <algorithm>

namespace dlsim {
namespace {

StepAnswer AnswerOf(const ReplayStep& record) {
  const TensorStats& gradients = record.gradients;
  StepAnswer answer;
  answer.underflow = gradients.underflow;
  answer.subnormal = gradients.subnormal;
  answer.overflow = gradients.overflow;
  answer.nonfinite_outputs = gradients.nonfinite_outputs;
  answer.underflow_squares = gradients.underflow_sum_of_squares;
  answer.energy_lost = gradients.energy_lost();
  answer.energy_bracket = {answer.energy_lost, answer.energy_lost};
  answer.verdict = {record.finite, record.lower_scale_helps, true};
  if (const auto& open = record.uncertain) {
    answer.exact = open->gradients.exact();
    answer.energy_bracket = open->gradients.RangeOf(&TensorStats::energy_lost, gradients);
    answer.verdict.certain = open->certain;
  }
  return answer;
}

}  // namespace

bool GeneralRuns::AllStopped() const {
  return std::all_of(runs_.begin(), runs_.end(),
                     [](const Run& run) { return run.state.stopped(); });
}

std::vector<size_t> GeneralRuns::Ask(const GradientStep& step,
                                     std::vector<StepQuestion>& questions) {
  const std::vector<StepTensor> tensors = step.Tensors();
  const bool looks_ahead = std::any_of(runs_.begin(), runs_.end(), [](const Run& run) {
    return !run.state.stopped() && run.state.looks_ahead();
  });
  std::vector<GradientSpread> spreads;
  if (looks_ahead) spreads = step.Spreads();
  std::vector<size_t> of_run;
  for (Run& run : runs_) {
    of_run.push_back(0);
    if (run.state.stopped()) continue;
    StepQuestion question = run.state.Prepare(step.number(), tensors, spreads);
    const auto found = std::find(questions.begin(), questions.end(), question);
    of_run.back() = static_cast<size_t>(found - questions.begin());
    if (found == questions.end()) questions.push_back(std::move(question));
  }
  return of_run;
}

void GeneralRuns::Add(Run& run) {
  if (run.state.stopped()) run.fatal = run.state.result().events.back();
  const ReplayStep record = run.state.TakeStep();
  run.sum.Add(record.step, record.scale, record.next_scale, record.skipped, AnswerOf(record));
  run.input.Merge(record.gradients);
}

void GeneralRuns::Advance(const GradientStep& step, const StepOptions& step_options) {
  std::vector<StepQuestion> questions;
  const std::vector<size_t> of_run = Ask(step, questions);
  const StepMeasurement measured = step.Measure(questions, step_options);
  for (size_t r = 0; r < runs_.size(); ++r) {
    if (runs_[r].state.stopped()) continue;
    runs_[r].state.Advance(measured, measured.answers[of_run[r]], step.number());
    Add(runs_[r]);
  }
}

SweepOutcome GeneralRuns::Outcome(size_t run) const {
  SweepOutcome outcome = runs_[run].sum.Outcome(runs_[run].input);
  outcome.fatal = runs_[run].fatal;
  return outcome;
}

}  // namespace dlsim
