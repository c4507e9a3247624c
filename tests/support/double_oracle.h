// SPDX-License-Identifier: Apache-2.0
// An independent model of formats and rounding in double arithmetic; shares no code with codec.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "dlsim/codec.h"

namespace dlsim {

// Value of a code, straight from the definition of the format; NaN and infinity as doubles.
inline double OracleDecode(const Format& f, uint32_t code) {
  const int width = 1 + f.exponent_bits + f.mantissa_bits;
  const double sign = ((code >> (width - 1)) & 1) != 0 ? -1.0 : 1.0;
  const double exponent = static_cast<double>((code >> f.mantissa_bits) % (1u << f.exponent_bits));
  const double fraction =
      static_cast<double>(code % (1u << f.mantissa_bits)) / std::exp2(f.mantissa_bits);
  const bool top = exponent == std::exp2(f.exponent_bits) - 1;
  if (f.specials == Specials::kIeee && top) {
    return fraction == 0 ? sign * HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
  }
  if (f.specials == Specials::kSingleNan && top && fraction == 1 - std::exp2(-f.mantissa_bits)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0 && f.denormals == Denormals::kGradual) {
    return sign * fraction * std::exp2(1 - f.bias);
  }
  if (exponent == 0 && fraction == 0) return sign * 0.0;
  return sign * (1 + fraction) * std::exp2(exponent - f.bias);
}

// Largest finite value by its definition: the code below infinity or NaN, or the last one.
inline double OracleMax(const Format& f) {
  const double last = std::exp2(f.exponent_bits) - 1;
  const double ulp = std::exp2(-f.mantissa_bits);
  if (f.specials == Specials::kFinite) return (2 - ulp) * std::exp2(last - f.bias);
  return f.specials == Specials::kIeee ? (2 - ulp) * std::exp2(last - 1 - f.bias)
                                       : (2 - 2 * ulp) * std::exp2(last - f.bias);
}

// Chooses between the neighbors lo <= |x| <= hi (as multiples n and n+1 of one quantum).
inline double OracleChoose(Rounding mode, bool negative, double lo, double hi, double x,
                           bool lo_is_even) {
  if (x == lo) return lo;
  switch (mode) {
    case Rounding::kTowardZero:
      return lo;
    case Rounding::kTowardPositive:
      return negative ? lo : hi;
    case Rounding::kTowardNegative:
      return negative ? hi : lo;
    default:
      break;
  }
  if (x - lo != hi - x) return x - lo < hi - x ? lo : hi;
  if (mode == Rounding::kNearestAway) return hi;
  return lo_is_even ? lo : hi;
}

// Rounds a finite float to the format by a deterministic mode; NaN where the format has no
// infinity.
inline double OracleRound(const Conversion& c, float value) {
  const Format& f = c.format;
  const bool negative = std::signbit(value);
  const double x = std::fabs(static_cast<double>(value));
  const double sign = negative ? -1.0 : 1.0;
  if (x == 0) return sign * 0.0;
  const bool gradual = f.denormals == Denormals::kGradual;
  const int min_exponent = gradual ? 1 - f.bias : -f.bias;
  const double quantum = std::exp2(std::fmax(std::ilogb(x), min_exponent) - f.mantissa_bits);
  double lo = std::floor(x / quantum) * quantum;
  double hi = lo + quantum;
  bool lo_is_even = std::fmod(lo / quantum, 2) == 0;
  const double min_positive = std::exp2(min_exponent) * (1 + std::exp2(-f.mantissa_bits));
  if (!gradual && x < min_positive) lo = 0, hi = min_positive, lo_is_even = true;
  double rounded = OracleChoose(c.rounding, negative, lo, hi, x, lo_is_even);
  const bool to_infinity =
      c.rounding == Rounding::kNearestEven || c.rounding == Rounding::kNearestAway ||
      c.rounding == (negative ? Rounding::kTowardNegative : Rounding::kTowardPositive);
  if (rounded > OracleMax(f)) {
    const bool clamp = c.overflow == Overflow::kSaturate || !to_infinity;
    const double past = f.specials == Specials::kIeee ? HUGE_VAL : std::nan("");
    rounded = clamp ? OracleMax(f) : past;
  }
  if (gradual && c.subnormals == Subnormals::kFlushToZero && rounded < std::exp2(min_exponent)) {
    rounded = 0;
  }
  return std::copysign(rounded, sign);
}

}  // namespace dlsim
