// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/step_answer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/replay/finite_test.h"
#include "src/base/float_environment.h"

namespace dlsim::sim {
namespace {

void SetEnergy(const Bracket<double>& squares, double sum_of_squares, StepAnswer& answer) {
  const auto share = [&](double part) { return sum_of_squares == 0 ? 0 : part / sum_of_squares; };
  answer.energy_bracket = {share(squares.low), share(squares.high)};
  answer.energy_lost = share(squares.Middle());
}

}  // namespace

StepQuestion SweepQuestion::ToMeasure() const {
  StepQuestion question = {kind_.conversion, scale(), {}, {}};
  const bool sums = NeedsDetail(kind_.finite_test, kind_.conversion.format);
  if (kind_.needs_absmax || sums) question.detail = DetailQuestion{.sums = sums};
  return question;
}

// Rounding is monotone: the largest gradients of both signs have the largest results.
float SweepQuestion::Absmax(const StepTotals& totals) const {
  const DefaultFloatEnvironment environment;
  const Histogram& whole = totals.whole().values;
  float absmax = 0;
  const auto add = [&](float value) {
    const float unscaled = std::fabs(question_.Quantize(value).unscaled);
    absmax = unscaled <= absmax ? absmax : unscaled;
  };
  for (const Sign sign : kSigns) add(ValueOf(whole.Of(sign).largest, sign));
  if (whole.zeros > 0) add(0.0f);
  if (whole.inf > 0) add(std::numeric_limits<float>::infinity());
  return whole.nan > 0 || !std::isfinite(absmax) ? std::numeric_limits<float>::infinity() : absmax;
}

StepAnswer SweepQuestion::Answer(const StepTotals& totals) const {
  const HistogramCounters counters = question_.Count(places_, totals.index());
  StepAnswer answer;
  answer.exact = counters.exact();
  counters.SetMiddles(answer.gradients);
  SetEnergy(counters.underflow_sum_of_squares, totals.gradients().sum_of_squares, answer);
  answer.outcome = JudgeTotals(kind_, question_, totals);
  if (kind_.needs_absmax) {
    answer.absmax = Absmax(totals);
    answer.outcome.certain &= totals.parts().size() == 1;
  }
  return answer;
}

StepAnswer AnswerOf(const SweepKind& kind, const StepMeasurement& step,
                    const std::vector<TensorAnswer>& answers, Checked checked) {
  std::vector<TensorStats> totals(answers.size());
  std::vector<size_t> deciding;
  TensorStats gradients;
  StepAnswer answer;
  for (size_t t = 0; t < answers.size(); ++t) {
    for (const TensorStats& part : answers[t].parts) totals[t].Merge(part);
    const bool gradient = step.tensors[t].role == Role::kGrad;
    if (gradient) gradients.Merge(totals[t]);
    if (!gradient && checked != Checked::kAllGradients) continue;
    deciding.push_back(t);
    answer.absmax = std::fmax(answer.absmax, answers[t].detail.absmax);
  }
  answer.gradients = gradients;
  const double squares = gradients.underflow_sum_of_squares;
  SetEnergy({squares, squares}, gradients.sum_of_squares, answer);
  const FiniteFindings findings = Judge({step, answers, totals}, deciding);
  ReplayStep record;
  record.finite = IsFinite(kind.finite_test, findings);
  Explain(kind.finite_test, findings, record);
  answer.outcome = {record.finite, record.lower_scale_helps, true};
  return answer;
}

}  // namespace dlsim::sim
