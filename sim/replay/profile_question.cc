// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/profile_question.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "src/base/first_magnitude.h"

namespace dlsim::sim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

size_t IndexOf(Sign sign) { return static_cast<size_t>(sign); }

// A value is there if its count has a high end above zero: the largest value is known exactly.
void TightenToOne(Bracket<uint64_t>& bracket, uint64_t& middle) {
  if (bracket.low > 0 || bracket.high == 0) return;
  bracket.low = 1;
  middle = bracket.Middle();
}

}  // namespace

ProfileQuestion::ProfileQuestion(const Conversion& conversion, float scale,
                                 const std::optional<DetailQuestion>& detail)
    : question_(conversion, scale), detail_(detail) {
  if (!detail || std::isnan(scale)) return;
  const auto scaled = [](const HistogramQuestion::Result& value) {
    return std::fabs(value.scaled);
  };
  const auto unscaled = [](const HistogramQuestion::Result& value) {
    return std::fabs(value.unscaled);
  };
  const auto above_limit = [&](float magnitude) { return magnitude > detail->limit; };
  edge_ = CutAt(scaled, [&](float magnitude) { return magnitude >= detail->edge; });
  limit_ = detail->limit_domain == ClipDomain::kUnscaled ? CutAt(unscaled, above_limit)
                                                         : CutAt(scaled, above_limit);
}

template <class Value, class Reaches>
LimitCut ProfileQuestion::CutAt(const Value& value, const Reaches& reaches) const {
  const auto of = [&](float input) -> std::optional<bool> {
    const float result = value(question_.Quantize(input));
    return std::isnan(result) ? std::nullopt : std::optional(reaches(result));
  };
  LimitCut cut;
  for (const Sign sign : kSigns) {
    const auto result = [&](uint32_t magnitude) { return of(ValueOf(magnitude, sign)); };
    cut.reached[IndexOf(sign)] =
        FirstMagnitude([&](uint32_t magnitude) { return result(magnitude).value_or(true); });
    cut.nan[IndexOf(sign)] =
        FirstMagnitude([&](uint32_t magnitude) { return !result(magnitude).has_value(); });
  }
  cut.zero = of(0.0f);
  cut.infinity = of(kInfinity);
  return cut;
}

// Rounding is monotone: the largest inputs have the largest results.
ProfileQuestion::Magnitudes ProfileQuestion::AddUp(const HistogramIndex& index,
                                                   PartAnswer& part) const {
  const Histogram& histogram = index.histogram();
  Magnitudes sums;
  const auto add = [&](float value) {
    const HistogramQuestion::Result result = question_.Quantize(value);
    sums.scaled += std::fabs(double{result.scaled});
    sums.unscaled += std::fabs(double{result.unscaled});
    return result;
  };
  if (histogram.nan > 0) add(std::numeric_limits<float>::quiet_NaN());
  if (histogram.inf > 0) {  // saturation treats both signs alike
    const HistogramQuestion::Result result = add(kInfinity);
    part.scaled.fill(std::fabs(result.scaled));
    part.unscaled.fill(std::fabs(result.unscaled));
  }
  if (histogram.zeros > 0 || part.counters.underflow.high > 0) add(0.0f);
  for (const Sign sign : kSigns) {
    if (histogram.Of(sign).largest == 0) continue;
    const HistogramQuestion::Result result = add(ValueOf(histogram.Of(sign).largest, sign));
    float& scaled = part.scaled[IndexOf(sign)];
    float& unscaled = part.unscaled[IndexOf(sign)];
    scaled = std::max(scaled, std::fabs(result.scaled));
    unscaled = std::max(unscaled, std::fabs(result.unscaled));
  }
  return sums;
}

PartAnswer ProfileQuestion::Look(const HistogramIndex& index) const {
  PartAnswer part;
  part.counters = question_.Ask(index);
  TightenToOne(part.counters.overflow, part.counters.stats.overflow);
  TightenToOne(part.counters.nonfinite_outputs, part.counters.stats.nonfinite_outputs);
  const Magnitudes sums = AddUp(index, part);
  part.all_zero = sums.scaled == 0 && sums.unscaled == 0;
  BoundSquares(index, part);
  for (GradientBound* bound : {&part.low, &part.estimate, &part.high}) {
    if (!std::isfinite(sums.unscaled)) bound->effective_sum_of_squares = sums.unscaled;
    bound->scaled_sum_finite = std::isfinite(sums.scaled);
  }
  if (detail_) BoundDetail(index, sums, part);
  return part;
}

// Every result is NaN.
PartAnswer ProfileQuestion::LookAtNan(const HistogramIndex& index) const {
  PartAnswer part;
  TensorStats& stats = part.counters.stats;
  stats = InputOf(index);
  stats.nonfinite_outputs = stats.elements;
  part.all_zero = stats.elements == 0;
  if (part.all_zero) return part;
  GradientBound bound;
  bound.effective_sum_of_squares = std::numeric_limits<double>::quiet_NaN();
  bound.scaled_sum_finite = false;
  if (detail_) {
    bound.detail.scaled_sum = bound.detail.scaled_sum_of_squares = bound.effective_sum_of_squares;
    bound.detail.absmax = kInfinity;
    bound.detail.elements = stats.elements;
  }
  part.low = part.estimate = part.high = bound;
  return part;
}

TensorAnswer ProfileQuestion::Answer(std::span<const HistogramIndex> parts) const {
  std::vector<PartAnswer> looks;
  for (const HistogramIndex& part : parts) {
    looks.push_back(std::isnan(question_.scale()) ? LookAtNan(part) : Look(part));
  }
  TensorAnswer answer;
  AnswerBounds bounds;
  for (const PartAnswer& part : looks) {
    answer.parts.push_back(part.counters.stats);
    bounds.counters.Merge(part.counters);
  }
  const PartAnswer sum = looks.size() == 1 ? looks.front() : SumParts(looks);
  answer.effective_sum_of_squares = sum.estimate.effective_sum_of_squares;
  answer.scaled_sum_finite = sum.estimate.scaled_sum_finite;
  answer.detail = sum.estimate.detail;
  bounds.low = sum.low;
  bounds.high = sum.high;
  answer.bounds = std::make_shared<const AnswerBounds>(bounds);
  return answer;
}

}  // namespace dlsim::sim
