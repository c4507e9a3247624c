// SPDX-License-Identifier: Apache-2.0
#include "sim/profile_question.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

namespace dlsim {
namespace {

constexpr std::array<Sign, 2> kSigns = {Sign::kPositive, Sign::kNegative};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kRounding = 0x1p-20;       // of scaling, unscaling and a float64 sum; relative
constexpr double kLeastSpacing = 0x1p-149;  // of float32

size_t IndexOf(Sign sign) { return static_cast<size_t>(sign); }

float ValueOf(uint32_t magnitude, Sign sign) {
  return std::bit_cast<float>(magnitude | (sign == Sign::kNegative ? codec::kSignBit : 0));
}

// Returns the first finite magnitude at which a monotone predicate holds, else that of infinity.
template <class Predicate>
uint32_t FirstMagnitude(const Predicate& holds) {
  uint32_t begin = 1, end = codec::kInfinityBits;
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    if (holds(middle)) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

// A value is there if its count has a high end above zero: the largest value is known exactly.
void TightenToOne(Bracket<uint64_t>& bracket, uint64_t& middle) {
  if (bracket.low > 0 || bracket.high == 0) return;
  bracket.low = 1;
  middle = bracket.low + (bracket.high - bracket.low) / 2;
}

uint64_t NonzeroCount(const Histogram& histogram) {
  return histogram.elements - histogram.zeros - histogram.nan - histogram.inf;
}

double Square(double value) { return value * value; }

Bracket<uint64_t> Difference(const Bracket<uint64_t>& a, const Bracket<uint64_t>& b) {
  const auto minus = [](uint64_t x, uint64_t y) { return x > y ? x - y : 0; };
  return {minus(a.low, b.high), minus(a.high, b.low)};
}

void Add(const Bracket<uint64_t>& from, Bracket<uint64_t>& into) {
  into.low += from.low;
  into.high += from.high;
}

// Counts the results on either side of a limit; NaN is on neither.
struct CutCounts {
  Bracket<uint64_t> below, above;
};

CutCounts Count(const LimitCut& cut, const HistogramIndex& index) {
  CutCounts counts;
  for (const Sign sign : kSigns) {
    const Bracket<uint64_t> below = index.At(sign, cut.reached[IndexOf(sign)]).count;
    const uint32_t nan = cut.nan[IndexOf(sign)];
    Bracket<uint64_t> above = Difference(index.At(sign, nan).count, below);
    // The largest value is known exactly.
    const uint32_t largest = index.histogram().Of(sign).largest;
    if (largest >= cut.reached[IndexOf(sign)] && largest < nan) {
      above.low = std::max<uint64_t>(above.low, 1);
    }
    Add(below, counts.below);
    Add(above, counts.above);
  }
  const auto add_all = [&](const std::optional<bool>& reaches, uint64_t count) {
    if (reaches) Add({count, count}, *reaches ? counts.above : counts.below);
  };
  add_all(cut.zero, index.histogram().zeros);
  add_all(cut.infinity, index.histogram().inf);
  return counts;
}

uint64_t Middle(const Bracket<uint64_t>& bracket) {
  return bracket.low + (bracket.high - bracket.low) / 2;
}

// Stores a number that is the same at both ends.
template <class T>
void SetAll(PartAnswer& part, T GradientDetail::*field, T value) {
  part.low.detail.*field = part.estimate.detail.*field = part.high.detail.*field = value;
}

// Stores an estimate within its bounds.
void SetWithin(double low, double estimate, double high, double GradientDetail::*field,
               PartAnswer& part) {
  part.low.detail.*field = low;
  part.high.detail.*field = std::max(low, high);
  part.estimate.detail.*field = std::clamp(estimate, low, std::max(low, high));
}

}  // namespace

ProfileQuestion::ProfileQuestion(const Conversion& conversion, float scale,
                                 const std::optional<DetailQuestion>& detail)
    : question_(conversion, std::isnan(scale) ? 1.0f : scale), scale_(scale), detail_(detail) {
  if (!detail || std::isnan(scale)) return;
  const auto scaled = [](const QuantizedValue& value) { return std::fabs(value.scaled); };
  const auto unscaled = [](const QuantizedValue& value) { return std::fabs(value.unscaled); };
  const auto above_limit = [&](float magnitude) { return magnitude > detail->limit; };
  edge_ = CutAt(scaled, [&](float magnitude) { return magnitude >= detail->edge; });
  limit_ = detail->limit_domain == ClipDomain::kUnscaled ? CutAt(unscaled, above_limit)
                                                         : CutAt(scaled, above_limit);
}

QuantizedValue ProfileQuestion::Quantize(float value) const {
  const Conversion& conversion = question_.conversion();
  const CodecSpec spec = MakeCodecSpec(conversion);
  const uint32_t scaled = std::bit_cast<uint32_t>(value * scale_);
  const EncodeResult result = Encode(spec, conversion.rounding, scaled);
  const float decoded = std::bit_cast<float>(Decode(spec, result.code));
  return {decoded, decoded * (1.0f / scale_)};
}

template <class Value, class Reaches>
LimitCut ProfileQuestion::CutAt(const Value& value, const Reaches& reaches) const {
  const auto of = [&](float input) -> std::optional<bool> {
    const float result = value(Quantize(input));
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
PartAnswer ProfileQuestion::Look(const HistogramIndex& index) const {
  const Histogram& histogram = index.histogram();
  PartAnswer part;
  part.counters = question_.Ask(index);
  TightenToOne(part.counters.overflow, part.counters.stats.overflow);
  TightenToOne(part.counters.nonfinite_outputs, part.counters.stats.nonfinite_outputs);
  double scaled = 0, unscaled = 0;  // sums of magnitudes: infinite or NaN if one is
  const auto add = [&](float value) {
    const QuantizedValue result = Quantize(value);
    scaled += std::fabs(double{result.scaled});
    unscaled += std::fabs(double{result.unscaled});
    return result;
  };
  if (histogram.nan > 0) add(std::numeric_limits<float>::quiet_NaN());
  if (histogram.inf > 0) add(kInfinity);
  if (histogram.zeros > 0 || part.counters.underflow.high > 0) add(0.0f);
  for (const Sign sign : kSigns) {
    if (histogram.Of(sign).largest == 0) continue;
    const QuantizedValue result = add(ValueOf(histogram.Of(sign).largest, sign));
    part.scaled[IndexOf(sign)] = std::fabs(result.scaled);
    part.unscaled[IndexOf(sign)] = std::fabs(result.unscaled);
  }
  part.all_zero = scaled == 0 && unscaled == 0;
  BoundSquares(index, part);
  if (!std::isfinite(unscaled)) {
    for (GradientBound* bound : {&part.low, &part.estimate, &part.high}) {
      bound->effective_sum_of_squares = unscaled;
    }
  }
  for (GradientBound* bound : {&part.low, &part.estimate, &part.high}) {
    bound->scaled_sum_finite = std::isfinite(scaled);
  }
  if (!detail_) return part;
  BoundDetail(index, part);
  SetAll(part, &GradientDetail::absmax,
         std::isfinite(unscaled) ? std::max(part.unscaled[0], part.unscaled[1]) : kInfinity);
  if (!std::isfinite(scaled)) {
    SetAll(part, &GradientDetail::scaled_sum, scaled);
    SetAll(part, &GradientDetail::scaled_sum_of_squares, scaled);
    part.sum_radius = 0;
  }
  return part;
}

// For results that are finite.
void ProfileQuestion::BoundSquares(const HistogramIndex& index, PartAnswer& part) const {
  const double values = static_cast<double>(NonzeroCount(index.histogram()));
  if (values == 0) return;
  const double largest = std::max(part.unscaled[0], part.unscaled[1]);
  const double least = Square(part.unscaled[0]) + Square(part.unscaled[1]);
  const double most = values * Square(largest) * (1 + kRounding);
  const double slack = kLeastSpacing * std::sqrt(values);
  const Bracket<double>& squares = part.counters.quantized_squares;
  const double low = Square(std::max(0.0, std::sqrt(squares.low) - slack));
  const double high = Square(std::sqrt(squares.high) + slack);
  part.low.effective_sum_of_squares = std::fmax(least, low);
  part.high.effective_sum_of_squares =
      std::fmax(part.low.effective_sum_of_squares, std::fmin(most, high));
  part.estimate.effective_sum_of_squares =
      std::clamp(part.counters.stats.quantized_sum_of_squares, part.low.effective_sum_of_squares,
                 part.high.effective_sum_of_squares);
}

// For results that are finite, but for the counts.
void ProfileQuestion::BoundDetail(const HistogramIndex& index, PartAnswer& part) const {
  const Histogram& histogram = index.histogram();
  const CutCounts edge = Count(edge_, index), limit = Count(limit_, index);
  part.low.detail.below_edge = edge.below.high;
  part.estimate.detail.below_edge = Middle(edge.below);
  part.high.detail.below_edge = edge.below.low;
  part.low.detail.above_edge = edge.above.low;
  part.estimate.detail.above_edge = Middle(edge.above);
  part.high.detail.above_edge = edge.above.high;
  part.low.detail.above_limit = limit.above.low;
  part.estimate.detail.above_limit = Middle(limit.above);
  part.high.detail.above_limit = limit.above.high;
  SetAll(part, &GradientDetail::elements, histogram.elements);
  const double values = static_cast<double>(NonzeroCount(histogram));
  if (values == 0) return;
  const double largest = std::max(part.scaled[0], part.scaled[1]);
  const double least = Square(part.scaled[0]) + Square(part.scaled[1]);
  const double most = values * Square(largest) * (1 + kRounding);
  const double scale = scale_;
  const double low = part.low.effective_sum_of_squares * scale * scale * (1 - kRounding);
  const double high = part.high.effective_sum_of_squares * scale * scale * (1 + kRounding);
  const bool exact_inverse = std::isnormal(1.0f / scale_);
  const double estimate = part.estimate.effective_sum_of_squares * scale * scale;
  SetWithin(exact_inverse ? std::min(most, std::fmax(least, low)) : least,
            std::isfinite(estimate) ? estimate : least,
            exact_inverse ? std::fmin(most, high) : most, &GradientDetail::scaled_sum_of_squares,
            part);
  // A result differs from its scaled input by a share of it, or by less than the smallest result.
  const Format& format = question_.conversion().format;
  const double share = std::ldexp(1.0, -format.mantissa_bits) + kRounding;
  const double magnitudes = std::sqrt(values * part.counters.stats.sum_of_squares) * scale;
  const double error = share * magnitudes + MinPositive(format) * values;
  const bool clamps = part.counters.overflow.high > 0;
  const double widest = values * largest * (1 + kRounding);
  const double sum = std::clamp(histogram.sum * scale, -widest, widest);
  part.sum_radius = clamps || !(error < widest) ? 2 * widest : error;
  part.estimate.detail.scaled_sum = sum;
  part.low.detail.scaled_sum = std::max(0.0, std::fabs(sum) - part.sum_radius);
  part.high.detail.scaled_sum = std::min(widest, std::fabs(sum) + part.sum_radius);
}

// Every result is NaN.
PartAnswer ProfileQuestion::LookAtNan(const HistogramIndex& index) const {
  const InputStats input = InputOf(index);
  PartAnswer part;
  TensorStats& stats = part.counters.stats;
  stats.elements = stats.nonfinite_outputs = input.elements;
  stats.zeros = input.zeros;
  stats.nan = input.nan;
  stats.inf = input.inf;
  stats.absmax = input.absmax;
  stats.sum_of_squares = input.sum_of_squares;
  part.all_zero = input.elements == 0;
  if (part.all_zero) return part;
  GradientBound bound;
  bound.effective_sum_of_squares = std::numeric_limits<double>::quiet_NaN();
  bound.scaled_sum_finite = false;
  if (detail_) {
    bound.detail.scaled_sum = bound.detail.scaled_sum_of_squares = bound.effective_sum_of_squares;
    bound.detail.absmax = kInfinity;
    bound.detail.elements = input.elements;
  }
  part.low = part.estimate = part.high = bound;
  return part;
}

TensorAnswer ProfileQuestion::Answer(std::span<const HistogramIndex> parts) const {
  std::vector<PartAnswer> looks;
  for (const HistogramIndex& part : parts) {
    looks.push_back(std::isnan(scale_) ? LookAtNan(part) : Look(part));
  }
  TensorAnswer answer;
  AnswerBounds bounds;
  for (const PartAnswer& part : looks) {
    answer.parts.push_back(part.counters.stats);
    bounds.counters.Merge({part.counters.underflow, part.counters.subnormal, part.counters.overflow,
                           part.counters.underflow_squares});
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

}  // namespace dlsim
