// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/step_answer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "float_environment.h"
#include "sim/verdict.h"

namespace dlsim {
namespace {

constexpr std::array<Sign, 2> kSigns = {Sign::kPositive, Sign::kNegative};

// Returns the middle of what lies between two places, and notes whether it is exact.
uint64_t CountBetween(const Bracket<uint64_t>& from, const Bracket<uint64_t>& to, bool& exact) {
  const uint64_t low = to.low > from.high ? to.low - from.high : 0;
  const uint64_t high = to.high > from.low ? to.high - from.low : 0;
  exact &= low == high;
  return low + (high - low) / 2;
}

void SetEnergy(const Bracket<double>& squares, double sum_of_squares, StepAnswer& answer) {
  const auto share = [&](double part) { return sum_of_squares == 0 ? 0 : part / sum_of_squares; };
  answer.exact &= squares.exact();
  answer.underflow_squares = squares.low + (squares.high - squares.low) / 2;
  answer.energy_bracket = {share(squares.low), share(squares.high)};
  answer.energy_lost = share(answer.underflow_squares);
}

}  // namespace

void SweepQuestion::PlaceIn(const HistogramEdges& edges) {
  for (const Sign sign : kSigns) {
    const HistogramQuestion::OfSign& of_sign = question_.Of(sign);
    const Thresholds& t = of_sign.thresholds;
    places_[static_cast<size_t>(sign)] = {PlaceOf(t.nonzero, edges), PlaceOf(t.normal, edges),
                                          PlaceOf(t.overflow, edges),
                                          PlaceOf(of_sign.nonfinite, edges)};
  }
}

StepQuestion SweepQuestion::ToMeasure() const {
  StepQuestion question = {kind_.conversion, scale(), {}, {}};
  if (kind_.needs_absmax || NeedsDetail(kind_.finite_test, kind_.conversion.format)) {
    question.detail = DetailQuestion{};
  }
  return question;
}

void SweepQuestion::AnswerSign(Sign sign, const StepTotals& totals, StepAnswer& answer,
                               Bracket<double>& squares) const {
  const Places& places = places_[static_cast<size_t>(sign)];
  const Bracket<uint64_t> none = {0, 0}, all = {totals.Count(sign), totals.Count(sign)};
  const Bracket<uint64_t> nonzero = totals.CountBelow(sign, places.nonzero);
  bool& exact = answer.exact;
  answer.underflow += CountBetween(none, nonzero, exact);
  answer.subnormal += CountBetween(nonzero, totals.CountBelow(sign, places.normal), exact);
  answer.overflow += CountBetween(totals.CountBelow(sign, places.overflow), all, exact);
  answer.nonfinite_outputs += CountBetween(totals.CountBelow(sign, places.nonfinite), all, exact);
  const Bracket<double> below = totals.SquaresBelow(sign, places.nonzero);
  squares.low += below.low;
  squares.high += below.high;
}

// Rounding is monotone: the largest gradients of both signs have the largest results.
float SweepQuestion::Absmax(const StepTotals& totals) const {
  const DefaultFloatEnvironment environment;
  const CodecSpec spec = MakeCodecSpec(kind_.conversion);
  const float inverse = 1.0f / scale();
  const CheckedPart& whole = totals.whole();
  float absmax = 0;
  const auto add = [&](float value) {
    const EncodeResult result =
        Encode(spec, kind_.conversion.rounding, std::bit_cast<uint32_t>(value * scale()));
    const float unscaled = std::fabs(std::bit_cast<float>(Decode(spec, result.code)) * inverse);
    absmax = unscaled <= absmax ? absmax : unscaled;
  };
  add(std::bit_cast<float>(whole.largest[0]));
  add(-std::bit_cast<float>(whole.largest[1]));
  if (whole.zeros > 0) add(0.0f);
  if (whole.inf > 0) add(std::numeric_limits<float>::infinity());
  return whole.nan > 0 || !std::isfinite(absmax) ? std::numeric_limits<float>::infinity() : absmax;
}

StepAnswer SweepQuestion::Answer(const StepTotals& totals) const {
  const TensorStats& input = totals.gradients();
  StepAnswer answer;
  Bracket<double> squares;
  for (const Sign sign : kSigns) AnswerSign(sign, totals, answer, squares);
  const HistogramQuestion::OfSign& positive = question_.Of(Sign::kPositive);
  answer.nonfinite_outputs += input.nan + (positive.zero_to_nonfinite ? input.zeros : 0) +
                              (positive.infinity_to_nonfinite ? input.inf : 0);
  SetEnergy(squares, input.sum_of_squares, answer);
  answer.verdict = JudgeTotals(kind_, question_, totals);
  if (kind_.needs_absmax) {
    answer.absmax = Absmax(totals);
    answer.verdict.certain &= totals.parts().size() == 1;
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
  answer.underflow = gradients.underflow;
  answer.subnormal = gradients.subnormal;
  answer.overflow = gradients.overflow;
  answer.nonfinite_outputs = gradients.nonfinite_outputs;
  const double squares = gradients.underflow_sum_of_squares;
  SetEnergy({squares, squares}, gradients.sum_of_squares, answer);
  const Verdict verdict = Judge({step, answers, totals}, deciding);
  ReplayStep record;
  record.finite = IsFinite(kind.finite_test, verdict);
  Explain(kind.finite_test, verdict, record);
  answer.verdict = {record.finite, record.lower_scale_helps, true};
  return answer;
}

}  // namespace dlsim
