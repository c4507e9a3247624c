// SPDX-License-Identifier: Apache-2.0
// Finite tests by totals: bounds tell for nearly every step.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "sim/replay/finite_test.h"
#include "sim/sweep/step_answer.h"

namespace dlsim::sim {
namespace {

constexpr double kSurelyFinite = 0x1p127;

// Upper bounds of what quantising makes of the gradients that decide, summed over parts as
// magnitudes and norms; all roundings of float32 are within the slack.
struct Bounds {
  double scaled_element = 0, unscaled_element = 0;
  double scaled_norm = 0, unscaled_norm = 0;
  double scaled_sum = 0;  // of any tensor
};

Bounds BoundsOf(const SweepKind& kind, float scale, const StepTotals& totals) {
  const Format& format = kind.conversion.format;
  const double parts = static_cast<double>(totals.parts().size());
  const double slack = (1 + std::ldexp(1.0, -format.mantissa_bits)) * (1 + (parts + 16) * 0x1p-22);
  const double size = std::fabs(double{scale}), inverse = std::fabs(double{1.0f / scale});
  const double tiny = 2 * MinPositive(format), most = MaxFinite(format);
  Bounds bounds;
  for (const CheckedPart& part : totals.parts()) {
    const Histogram& values = part.values;
    const double largest = std::bit_cast<float>(
        std::max(values.Of(Sign::kPositive).largest, values.Of(Sign::kNegative).largest));
    const bool clamped = values.inf > 0;  // to the largest finite value, or the step is not finite
    const double element = clamped ? most : largest * size * slack + tiny;
    const double elements = static_cast<double>(values.elements);
    const double norm = std::sqrt(part.squares) * size * slack + tiny * std::sqrt(elements) +
                        most * std::sqrt(static_cast<double>(values.inf));
    bounds.scaled_element += std::min(element, most) * slack;
    bounds.scaled_norm += norm * slack;
    bounds.scaled_sum += norm * slack * std::sqrt(elements);  // by Cauchy and Schwarz
  }
  bounds.unscaled_element = bounds.scaled_element * inverse * slack + 0x1p-140;
  bounds.unscaled_norm = bounds.scaled_norm * inverse * slack;
  return bounds;
}

// What a finite test would see if all were as large as it can be. Written so that a NaN is not
// finite.
FiniteFindings FindingsAtMost(const SweepKind& kind, const Bounds& bounds, bool scaled_finite,
                              bool unscaled_finite) {
  static const std::string kSomeTensor;
  constexpr double kMost = std::numeric_limits<double>::max();
  const bool detail = NeedsDetail(kind.finite_test, kind.conversion.format);
  FiniteFindings most;
  most.sum_of_squares = unscaled_finite
                            ? std::fmin(bounds.unscaled_norm * bounds.unscaled_norm, kMost)
                            : std::numeric_limits<double>::infinity();
  if (detail) most.scaled_sum_of_squares = bounds.scaled_norm * bounds.scaled_norm;
  most.nonfinite_scaled_sum = !scaled_finite;
  if (detail && !(bounds.scaled_sum < kFloat32Overflow)) most.sum_tensor = &kSomeTensor;
  return most;
}

// Asks about the quantised, unscaled squares.
HistogramAnswer AskAll(const HistogramQuestion& question, const StepTotals& totals) {
  HistogramAnswer answer;
  totals.ForEachChecked([&](const Histogram& histogram) {
    answer.Merge(question.Ask(HistogramIndex(histogram, totals.edges())));
  });
  return answer;
}

// Judges the norm where its upper bound does not: by `factor` times the unscaled squares.
FiniteOutcome JudgeNorm(const HistogramQuestion& question, const StepTotals& totals, double factor,
                        bool lower_scale_helps) {
  const HistogramAnswer answer = AskAll(question, totals);
  const Bracket<double>& squares = answer.quantized_squares;
  const bool one_part = totals.parts().size() == 1;
  if (one_part && squares.high * factor < kFloat32Overflow) return {};
  const bool overflows = one_part && squares.low * factor >= kFloat32Overflow;
  const bool finite =
      !overflows && answer.stats.quantized_sum_of_squares * factor < kFloat32Overflow;
  const bool good_input = totals.whole().values.nan + totals.whole().values.inf == 0;
  return {finite, finite || (lower_scale_helps && good_input), overflows};
}

}  // namespace

FiniteOutcome JudgeTotals(const SweepKind& kind, const HistogramQuestion& question,
                          const StepTotals& totals) {
  const Histogram& whole = totals.whole().values;
  if (question.MakesNonfinite(whole)) return {false, whole.nan + whole.inf == 0, true};
  const FiniteTest test = kind.finite_test;
  const bool one_part = totals.parts().size() == 1;
  if (one_part && test == FiniteTest::kElementwise) return {};
  const Bounds bounds = BoundsOf(kind, question.scale(), totals);
  const bool scaled_finite = one_part || bounds.scaled_element < kSurelyFinite;
  const bool unscaled_finite = bounds.unscaled_element < kSurelyFinite;
  // What passes at its largest is finite.
  if (IsFinite(test, FindingsAtMost(kind, bounds, scaled_finite, unscaled_finite))) return {};
  if (unscaled_finite && test == FiniteTest::kGlobalNorm)
    return JudgeNorm(question, totals, 1, false);
  if (unscaled_finite && scaled_finite && test == FiniteTest::kScaledNorm) {
    const double scale = double{question.scale()};
    return JudgeNorm(question, totals, scale * scale, true);
  }
  return {true, true, false};
}

}  // namespace dlsim::sim
