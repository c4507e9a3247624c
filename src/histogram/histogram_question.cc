// SPDX-License-Identifier: Apache-2.0
#include "src/histogram/histogram_question.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "src/base/first_magnitude.h"
#include "src/base/float_environment.h"

namespace dlsim {
namespace {

constexpr double kScaling = 0x1p-21;  // what scaling and unscaling may change, relatively

uint32_t CodeOf(const Conversion& conversion, float value, float scale) {
  const CodecSpec spec = MakeCodecSpec(conversion);
  return Encode(spec, conversion.rounding, std::bit_cast<uint32_t>(value * scale)).code;
}

bool IsNonfinite(const Conversion& conversion, uint32_t code) {
  const CodeClass kind = Classify(MakeCodecSpec(conversion), code);
  return kind == CodeClass::kInfinity || kind == CodeClass::kNan;
}

// How far a result is from its value at most, in distances between results.
double LargestError(Rounding rounding) {
  return rounding == Rounding::kNearestEven || rounding == Rounding::kNearestAway ? 0.5 : 1.0;
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

void HistogramCounters::SetMiddles(TensorStats& stats) const {
  ForEachCounter([&](auto row) {
    if constexpr (row.kHasBracket) stats.*row.kRow.of = (this->*row.kRow.open).Middle();
  });
  stats.nonfinite_outputs = nonfinite_outputs.Middle();
}

void HistogramAnswer::Merge(const HistogramAnswer& other) {
  CounterBrackets::Merge(other);
  nonfinite_outputs.Add(other.nonfinite_outputs);
  quantized_squares.Add(other.quantized_squares);
  stats.Merge(other.stats);
}

// The signs differ at most by the direction of rounding.
HistogramQuestion::HistogramQuestion(const Conversion& conversion, float scale,
                                     const HistogramQuestion* near)
    : conversion_(conversion), scale_(scale) {
  const DefaultFloatEnvironment environment;
  OfSign guess;
  for (const Sign sign : kSigns) {
    if (near != nullptr) guess = GuessFrom(*near, sign);
    guess = signs_[static_cast<size_t>(sign)] = Find(sign, guess);
  }
}

// Thresholds move with the scale.
HistogramQuestion::OfSign HistogramQuestion::GuessFrom(const HistogramQuestion& near,
                                                       Sign sign) const {
  const double ratio = std::fabs(double{near.scale_} / double{scale_});
  const auto moved = [&](uint32_t threshold) {
    return MagnitudeBits(double{ValueOf(threshold, Sign::kPositive)} * ratio);
  };
  const OfSign& from = near.Of(sign);
  OfSign guess;
  guess.nonzero = moved(from.nonzero);
  guess.normal = moved(from.normal);
  guess.overflow = moved(from.overflow);
  guess.largest = moved(from.largest);
  guess.nonfinite = moved(from.nonfinite);
  return guess;
}

HistogramQuestion::OfSign HistogramQuestion::Find(Sign sign, const OfSign& guess) const {
  const auto code_of = [&](uint32_t bits) {
    return CodeOf(conversion_, ValueOf(bits, sign), scale_);
  };
  const auto nonfinite = [&](uint32_t bits) { return IsNonfinite(conversion_, code_of(bits)); };
  const uint32_t largest_code = MaxFiniteCode(conversion_.format);
  const uint32_t code_mask = MagnitudeMask(conversion_.format);
  const auto largest = [&](uint32_t bits) { return (code_of(bits) & code_mask) >= largest_code; };
  OfSign found;
  // Times NaN everything is NaN: the default thresholds are those.
  if (!std::isnan(scale_)) {
    static_cast<Thresholds&>(found) = FindThresholds(conversion_, scale_, sign, guess);
  }
  found.largest = FirstMagnitudeNear(guess.largest, largest);
  found.nonfinite = FirstMagnitudeNear(guess.nonfinite, nonfinite);
  found.zero_to_nonfinite = nonfinite(0);
  found.infinity_to_nonfinite = nonfinite(codec::kInfinityBits);
  return found;
}

std::vector<uint32_t> HistogramQuestion::ThresholdBits() const {
  std::vector<uint32_t> bits;
  for (const OfSign& sign : signs_) {
    for (const uint32_t edge : {sign.nonzero, sign.normal, sign.overflow, sign.nonfinite}) {
      bits.push_back(edge);
    }
  }
  std::ranges::sort(bits);
  bits.erase(std::unique(bits.begin(), bits.end()), bits.end());
  return bits;
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
  const OfSign& of_sign = Of(sign);
  const double half = LargestError(conversion_.rounding);
  const double relative = std::ldexp(half, -conversion_.format.mantissa_bits) + kScaling;
  const double inverse = std::fabs(double{1.0f / scale_});
  const float absmax = std::bit_cast<float>(index.histogram().Of(sign).largest);
  if (absmax == 0) return {};
  if (!std::isnormal(1.0f / scale_) || double{absmax} * (1 + 2 * relative) >= 0x1p128) {
    return {0, std::numeric_limits<double>::infinity()};
  }
  const HistogramIndex::Below nonzero = index.At(sign, of_sign.nonzero);
  const bool sparse = conversion_.format.denormals == Denormals::kNone;
  const double smallest = MinPositive(conversion_.format);
  const HistogramIndex::Below normal = index.At(sign, FirstPrecise(sign));
  const HistogramIndex::Below clamped = index.At(sign, of_sign.largest);
  const HistogramIndex::Below end = index.At(sign, of_sign.nonfinite);
  Bracket<double> squares = Widen(Between(normal.squares, clamped.squares), relative, 0);
  const Bracket<uint64_t> subnormals = Between(nonzero.count, normal.count);
  const double spacing = smallest * (sparse ? 1.0 : half) * inverse;
  const double error = spacing * std::sqrt(static_cast<double>(subnormals.high));
  squares.Add(Widen(Between(nonzero.squares, normal.squares), kScaling, error));
  const Bracket<uint64_t> count = Between(clamped.count, end.count);
  const double largest = MaxFinite(conversion_.format) * inverse;
  const double square = largest * largest;
  squares.low += static_cast<double>(count.low) * square * (1 - 2 * kScaling);
  squares.high += static_cast<double>(count.high) * square * (1 + 4 * kScaling);
  return squares;
}

// The first input from which on the error is relative. Without subnormals the results near the
// smallest one are as far apart as it is from zero.
uint32_t HistogramQuestion::FirstPrecise(Sign sign) const {
  const bool sparse = conversion_.format.denormals == Denormals::kNone;
  const double inverse = std::fabs(double{1.0f / scale_});
  const uint32_t apart = sparse ? MagnitudeBits(2 * MinPositive(conversion_.format) * inverse) : 0;
  return std::max(Of(sign).normal, apart);
}

// What underflows is lost whole. What is spread evenly between two results is off by a twelfth of
// the square of their distance on average, or a third if rounding has a direction. That distance is
// the same for all subnormal results; relative to normal ones it is 2^-mantissa at the beginning of
// a binade and half of it at its end: 3/7 of its square relative to the mean square.
HistogramQuestion::ErrorSquares HistogramQuestion::Errors(Sign sign,
                                                          const HistogramIndex& index) const {
  const OfSign& of_sign = Of(sign);
  const double most = LargestError(conversion_.rounding), mean = most * most / 3;
  const double inverse = scale_ == 0 ? 0 : 1 / std::fabs(double{scale_});
  const HistogramIndex::Below lost = index.At(sign, of_sign.nonzero);
  const HistogramIndex::Below normal = index.At(sign, FirstPrecise(sign));
  const HistogramIndex::Below clamped = index.At(sign, of_sign.largest);
  const HistogramIndex::Below end = index.At(sign, of_sign.nonfinite);
  ErrorSquares errors = {lost.squares, lost.squares.Middle()};
  const auto add = [&](double likely, double high) {
    errors.range.high += high;
    errors.likely += std::min(likely, high);
  };
  const double apart = MinPositive(conversion_.format) * inverse;
  const Bracket<uint64_t> coarse = Between(lost.count, normal.count);
  add(static_cast<double>(coarse.Middle()) * apart * apart * mean,
      std::min(static_cast<double>(coarse.high) * std::pow(apart * (most + kScaling), 2),
               Between(lost.squares, normal.squares).high));
  const double unit = std::ldexp(1.0, -conversion_.format.mantissa_bits);
  const Bracket<double> squares = Between(normal.squares, clamped.squares);
  add(squares.Middle() * unit * unit * mean * 3 / 7,
      squares.high * std::pow(unit * most / (1 - unit * most) + kScaling, 2));
  // (x - M)^2 is at most x^2 - M^2 for an x beyond the largest finite M; others round to it.
  const Bracket<double> beyond = Between(clamped.squares, end.squares);
  const Bracket<uint64_t> count = Between(clamped.count, end.count);
  const double largest = MaxFinite(conversion_.format) * inverse;
  const double over = beyond.high - static_cast<double>(count.low) * largest * largest;
  const double rounded = static_cast<double>(count.high) * std::pow(unit * most * largest, 2);
  if (count.high > 0) add(std::max(0.0, over) / 2, std::max(0.0, over) + rounded);
  return errors;
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

HistogramQuestion::Result HistogramQuestion::Quantize(float value) const {
  const CodecSpec spec = MakeCodecSpec(conversion_);
  const uint32_t code = CodeOf(conversion_, value, scale_);
  const float scaled = std::bit_cast<float>(Decode(spec, code));
  return {scaled, scaled * (1.0f / scale_)};
}

std::array<HistogramQuestion::Places, 2> HistogramQuestion::PlacesIn(
    const HistogramEdges& edges) const {
  std::array<Places, 2> places;
  for (size_t s = 0; s < signs_.size(); ++s) {
    const OfSign& of_sign = signs_[s];
    places[s] = {PlaceOf(of_sign.nonzero, edges), PlaceOf(of_sign.normal, edges),
                 PlaceOf(of_sign.overflow, edges), PlaceOf(of_sign.nonfinite, edges)};
  }
  return places;
}

HistogramAnswer HistogramQuestion::Ask(const HistogramIndex& index) const {
  HistogramAnswer answer{Count(signs_, index), InputOf(index), {}};
  TensorStats& stats = answer.stats;
  answer.SetMiddles(stats);
  for (const Sign sign : kSigns) {
    answer.quantized_squares.Add(QuantizedSquares(sign, index));
    const ErrorSquares errors = Errors(sign, index);
    answer.error_sum_of_squares.Add(errors.range);
    stats.error_sum_of_squares += errors.likely;
  }
  answer.quantized_squares.Add(ClampedInfinities(index.histogram()));
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
