// SPDX-License-Identifier: Apache-2.0
#include "dlsim/histogram_question.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "check.h"
#include "parallel.h"

namespace dlsim {
namespace {

constexpr std::array<Sign, 2> kSigns = {Sign::kPositive, Sign::kNegative};
constexpr double kScaling = 0x1p-21;  // what scaling and unscaling may change, relatively

uint32_t CodeOf(const Conversion& conversion, float value, float scale) {
  const CodecSpec spec = MakeCodecSpec(conversion);
  return Encode(spec, conversion.rounding, std::bit_cast<uint32_t>(value * scale)).code;
}

bool IsNonfinite(const Conversion& conversion, uint32_t code) {
  const CodeClass kind = Classify(MakeCodecSpec(conversion), code);
  return kind == CodeClass::kInfinity || kind == CodeClass::kNan;
}

// Returns the smallest magnitude of a sign at whose code `holds`, which is monotone.
template <class Predicate>
uint32_t FirstWhere(const Conversion& conversion, float scale, Sign sign, const Predicate& holds) {
  const uint32_t sign_bit = sign == Sign::kNegative ? codec::kSignBit : 0;
  uint32_t begin = 1, end = codec::kInfinityBits;
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    if (holds(CodeOf(conversion, std::bit_cast<float>(middle | sign_bit), scale))) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

uint64_t Middle(const Bracket<uint64_t>& bracket) {
  return bracket.low + (bracket.high - bracket.low) / 2;
}
double Middle(const Bracket<double>& bracket) {
  return bracket.low + (bracket.high - bracket.low) / 2;
}

template <class T>
void AddBracket(const Bracket<T>& from, Bracket<T>& into) {
  into.low += from.low;
  into.high += from.high;
}

// Returns what lies from one threshold to another; at least nothing.
template <class T>
Bracket<T> Between(const Bracket<T>& low, const Bracket<T>& high) {
  const auto less = [](T a, T b) { return a > b ? a - b : T{0}; };
  return {less(high.low, low.high), less(high.high, low.low)};
}

// The squares of a norm that differs from sqrt(squares) by at most `error`.
Bracket<double> Widen(const Bracket<double>& squares, double relative, double absolute) {
  const double low = std::sqrt(squares.low), high = std::sqrt(squares.high);
  const double least = std::max(0.0, low - low * relative - absolute);
  const double most = high + high * relative + absolute;
  return {least * least, most * most};
}

// The bits of a magnitude in float32, at most those of infinity.
uint32_t MagnitudeBits(double magnitude) {
  return magnitude < 0x1p127 ? std::bit_cast<uint32_t>(static_cast<float>(magnitude))
                             : codec::kInfinityBits;
}

}  // namespace

void HistogramAnswer::Merge(const HistogramAnswer& other) {
  AddBracket(other.underflow, underflow);
  AddBracket(other.subnormal, subnormal);
  AddBracket(other.overflow, overflow);
  AddBracket(other.nonfinite_outputs, nonfinite_outputs);
  AddBracket(other.underflow_squares, underflow_squares);
  AddBracket(other.quantized_squares, quantized_squares);
  stats.Merge(other.stats);
}

HistogramQuestion::HistogramQuestion(const Conversion& conversion, float scale)
    : conversion_(conversion), scale_(scale) {
  const DefaultFloatEnvironment environment;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto nonfinite = [&](uint32_t code) { return IsNonfinite(conversion, code); };
  const uint32_t largest_code = MaxFiniteCode(conversion.format);
  const uint32_t code_mask = MagnitudeMask(conversion.format);
  const auto largest = [&](uint32_t code) { return (code & code_mask) >= largest_code; };
  for (const Sign sign : kSigns) {
    const float one = sign == Sign::kNegative ? -1.0f : 1.0f;
    OfSign& of_sign = signs_[static_cast<size_t>(sign)];
    // Times NaN everything is NaN: the default thresholds are those.
    if (!std::isnan(scale)) of_sign.thresholds = FindThresholds(conversion, scale, sign);
    of_sign.largest = FirstWhere(conversion, scale, sign, largest);
    of_sign.nonfinite = FirstWhere(conversion, scale, sign, nonfinite);
    of_sign.zero_to_nonfinite = nonfinite(CodeOf(conversion, 0.0f * one, scale));
    of_sign.infinity_to_nonfinite = nonfinite(CodeOf(conversion, kInfinity * one, scale));
  }
}

std::vector<uint32_t> HistogramQuestion::ThresholdBits() const {
  std::set<uint32_t> bits;
  for (const OfSign& sign : signs_) {
    const Thresholds& t = sign.thresholds;
    bits.insert({t.nonzero, t.normal, t.overflow, sign.nonfinite});
  }
  return {bits.begin(), bits.end()};
}

bool HistogramQuestion::MakesNonfinite(const Histogram& histogram) const {
  // Infinities keep their sign, but saturation treats both signs alike.
  if (histogram.nan > 0 || (histogram.inf > 0 && signs_[0].infinity_to_nonfinite)) return true;
  if (histogram.zeros > 0 && signs_[0].zero_to_nonfinite) return true;
  return std::any_of(kSigns.begin(), kSigns.end(), [&](Sign sign) {
    return histogram.Of(sign).largest >= signs_[static_cast<size_t>(sign)].nonfinite;
  });
}

// The norm of the quantised values differs from that of the values by rounding: relative to normal
// results, absolute for subnormal ones (Minkowski's inequality). Scaling and unscaling round, too.
Bracket<double> HistogramQuestion::QuantizedSquares(Sign sign, const HistogramIndex& index) const {
  const OfSign& of_sign = signs_[static_cast<size_t>(sign)];
  const Thresholds& t = of_sign.thresholds;
  const bool nearest = conversion_.rounding == Rounding::kNearestEven ||
                       conversion_.rounding == Rounding::kNearestAway;
  const double half = nearest ? 0.5 : 1.0;
  const double relative = std::ldexp(half, -conversion_.format.mantissa_bits) + kScaling;
  const double inverse = std::fabs(double{1.0f / scale_});
  const float absmax = std::bit_cast<float>(index.histogram().Of(sign).largest);
  if (absmax == 0) return {};
  if (!std::isnormal(1.0f / scale_) || double{absmax} * (1 + 2 * relative) >= 0x1p128) {
    return {0, std::numeric_limits<double>::infinity()};
  }
  const HistogramIndex::Below nonzero = index.At(sign, t.nonzero);
  // Without subnormals the results near the smallest one are as far apart as it is from zero.
  const bool sparse = conversion_.format.denormals == Denormals::kNone;
  const double smallest = MinPositive(conversion_.format);
  const HistogramIndex::Below normal =
      index.At(sign, sparse ? std::max(t.normal, MagnitudeBits(2 * smallest * inverse)) : t.normal);
  const HistogramIndex::Below clamped = index.At(sign, of_sign.largest);
  const HistogramIndex::Below end = index.At(sign, of_sign.nonfinite);
  Bracket<double> squares = Widen(Between(normal.squares, clamped.squares), relative, 0);
  const Bracket<uint64_t> subnormals = Between(nonzero.count, normal.count);
  const double spacing = smallest * (sparse ? 1.0 : half) * inverse;
  const double error = spacing * std::sqrt(static_cast<double>(subnormals.high));
  AddBracket(Widen(Between(nonzero.squares, normal.squares), kScaling, error), squares);
  const Bracket<uint64_t> count = Between(clamped.count, end.count);
  const double largest = MaxFinite(conversion_.format) * inverse;
  const double square = largest * largest;
  squares.low += static_cast<double>(count.low) * square * (1 - 2 * kScaling);
  squares.high += static_cast<double>(count.high) * square * (1 + 4 * kScaling);
  return squares;
}

// What infinities that become the largest finite value, as when saturating, add to the squares.
Bracket<double> HistogramQuestion::ClampedInfinities(const Histogram& histogram) const {
  if (histogram.inf == 0 || signs_[0].infinity_to_nonfinite) return {};
  const float inverse = std::fabs(1.0f / scale_);
  const double largest = MaxFinite(conversion_.format) * double{inverse};
  if (!std::isnormal(inverse) || largest * (1 + kScaling) >= 0x1p128) {
    return {0, std::numeric_limits<double>::infinity()};
  }
  const double squares = static_cast<double>(histogram.inf) * largest * largest;
  return {squares * (1 - 2 * kScaling), squares * (1 + 4 * kScaling)};
}

void HistogramQuestion::AskSign(Sign sign, const HistogramIndex& index,
                                HistogramAnswer& answer) const {
  const OfSign& of_sign = signs_[static_cast<size_t>(sign)];
  const Thresholds& t = of_sign.thresholds;
  const HistogramIndex::Below nonzero = index.At(sign, t.nonzero);
  const HistogramIndex::Below all = index.At(sign, codec::kInfinityBits);
  AddBracket(nonzero.count, answer.underflow);
  AddBracket(nonzero.squares, answer.underflow_squares);
  AddBracket(Between(nonzero.count, index.At(sign, t.normal).count), answer.subnormal);
  AddBracket(Between(index.At(sign, t.overflow).count, all.count), answer.overflow);
  AddBracket(Between(index.At(sign, of_sign.nonfinite).count, all.count), answer.nonfinite_outputs);
  AddBracket(QuantizedSquares(sign, index), answer.quantized_squares);
}

HistogramAnswer HistogramQuestion::Ask(const HistogramIndex& index) const {
  HistogramAnswer answer;
  for (const Sign sign : kSigns) AskSign(sign, index, answer);
  const Histogram& histogram = index.histogram();
  const uint64_t nonfinite = histogram.nan + (signs_[0].zero_to_nonfinite ? histogram.zeros : 0) +
                             (signs_[0].infinity_to_nonfinite ? histogram.inf : 0);
  AddBracket({nonfinite, nonfinite}, answer.nonfinite_outputs);
  AddBracket(ClampedInfinities(histogram), answer.quantized_squares);
  TensorStats& stats = answer.stats;
  stats = InputOf(index);
  stats.underflow = Middle(answer.underflow);
  stats.subnormal = Middle(answer.subnormal);
  stats.overflow = Middle(answer.overflow);
  stats.nonfinite_outputs = Middle(answer.nonfinite_outputs);
  stats.underflow_sum_of_squares = Middle(answer.underflow_squares);
  if (answer.nonfinite_outputs.low > 0) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    answer.quantized_squares = {kInfinity, kInfinity};
  }
  const double kept = stats.sum_of_squares - stats.underflow_sum_of_squares;
  stats.quantized_sum_of_squares =
      std::clamp(kept, answer.quantized_squares.low, answer.quantized_squares.high);
  return answer;
}

}  // namespace dlsim
