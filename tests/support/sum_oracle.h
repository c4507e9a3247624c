// SPDX-License-Identifier: Apache-2.0
// An independent model of sums in few bits: every value is an integer multiple of 2^-298, so that
// sums and products are exact, and is rounded by division. Shares no code with the emulation.
#pragma once

#include <boost/multiprecision/cpp_int.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "dlsim/accumulate.h"
#include "dlsim/philox.h"

namespace dlsim {

using BigInteger = boost::multiprecision::cpp_int;

inline constexpr int kBigShift = 298;  // the smallest product of two float32 is 2^-298

inline BigInteger ToBig(double x) {
  int exponent = 0;
  const int64_t significand = static_cast<int64_t>(std::frexp(x, &exponent) * 0x1p53);
  const int shift = exponent - 53 + kBigShift;
  const BigInteger magnitude = significand < 0 ? -significand : significand;
  const BigInteger shifted =
      shift >= 0 ? BigInteger(magnitude << shift) : BigInteger(magnitude >> -shift);  // zeros only
  return significand < 0 ? BigInteger(-shifted) : shifted;
}

inline double FromBig(const BigInteger& units, int unit_exponent) {
  return std::ldexp(units.convert_to<double>(), unit_exponent);
}

// The row of float32 itself, which formats cannot express.
struct OracleFormat {
  int mantissa_bits, min_exponent;
  double max, min_positive;
  bool gradual, has_infinity, saturates, flushes;
  Rounding rounding;
};

inline OracleFormat OracleOf(const Precision& precision) {
  if (precision.kind != Precision::Kind::kFormat) {
    return {23,       -126,  std::numeric_limits<float>::max(),
            0x1p-149, true,  true,
            false,    false, Rounding::kNearestEven};
  }
  const Conversion& c = precision.conversion;
  const bool gradual = c.format.denormals == Denormals::kGradual;
  const int min_exponent = (gradual ? 1 : 0) - c.format.bias;
  const double smallest =
      gradual ? std::ldexp(1.0, min_exponent - c.format.mantissa_bits)
              : std::ldexp(1.0, min_exponent) * (1 + std::ldexp(1.0, -c.format.mantissa_bits));
  return {c.format.mantissa_bits,
          min_exponent,
          MaxFinite(c.format),
          smallest,
          gradual,
          c.format.specials == Specials::kIeee,
          c.overflow == Overflow::kSaturate,
          c.subnormals == Subnormals::kFlushToZero,
          c.rounding};
}

// Whether to go from the lower neighbour to the upper; `rest` of `unit` lies above the lower.
inline bool OracleRoundsUp(const OracleFormat& f, const BigInteger& rest, const BigInteger& unit,
                           bool lower_is_odd, bool negative, uint32_t random) {
  if (rest == 0) return false;
  switch (f.rounding) {
    case Rounding::kTowardZero:
      return false;
    case Rounding::kTowardPositive:
      return !negative;
    case Rounding::kTowardNegative:
      return negative;
    case Rounding::kNearestAway:
      return 2 * rest >= unit;
    case Rounding::kNearestEven:
      return 2 * rest > unit || (2 * rest == unit && lower_is_odd);
    case Rounding::kStochastic:
      return BigInteger(random) < ((rest << 32) / unit);
  }
  return false;
}

// A value with what became of it.
struct OracleValue {
  double value = 0;
  bool overflows = false;
};

inline OracleValue OraclePastMax(const OracleFormat& f, bool negative) {
  const bool stops =
      f.rounding == Rounding::kTowardZero ||
      f.rounding == (negative ? Rounding::kTowardPositive : Rounding::kTowardNegative);
  if (f.saturates || stops) return {f.max, f.saturates};
  return {f.has_infinity ? HUGE_VAL : std::nan(""), true};
}

// Rounds an exact value. `random` are the codec's 32 bits: it compares their complement.
inline OracleValue OracleRoundBig(const OracleFormat& f, const BigInteger& value, uint32_t random) {
  if (value == 0) return {};
  const bool negative = value < 0;
  const double sign = negative ? -1.0 : 1.0;
  const BigInteger magnitude = abs(value);
  const BigInteger smallest = ToBig(f.min_positive);
  if (!f.gradual && magnitude < smallest) {
    const bool up = OracleRoundsUp(f, magnitude, smallest, false, negative, random);
    return {sign * (up ? f.min_positive : 0.0)};
  }
  const int exponent = static_cast<int>(msb(magnitude)) - kBigShift;
  const int unit_exponent = std::max(exponent, f.min_exponent) - f.mantissa_bits;
  const BigInteger unit = BigInteger(1) << (unit_exponent + kBigShift);
  BigInteger units = magnitude / unit;
  const bool odd = (units & 1) != 0;
  if (OracleRoundsUp(f, magnitude % unit, unit, odd, negative, ~random)) ++units;
  OracleValue rounded = {FromBig(units, unit_exponent)};
  if (rounded.value > f.max) rounded = OraclePastMax(f, negative);
  if (f.flushes && f.gradual && rounded.value < std::ldexp(1.0, f.min_exponent)) {
    rounded.value = 0;
  }
  return {std::copysign(rounded.value, sign), rounded.overflows};
}

// Rounds what is not finite.
inline OracleValue OracleSpecial(const OracleFormat& f, double value) {
  if (std::isnan(value)) return {value};
  if (f.saturates) return {std::copysign(f.max, value)};
  return {f.has_infinity ? value : std::nan("")};
}

inline OracleValue OracleAdd(const OracleFormat& f, double sum, double addend, uint32_t random) {
  if (!std::isfinite(sum) || !std::isfinite(addend)) return OracleSpecial(f, sum + addend);
  const BigInteger exact = ToBig(sum) + ToBig(addend);
  if (exact == 0) return {sum + addend};  // +0, or -0 if both are
  return OracleRoundBig(f, exact, random);
}

inline OracleValue OracleRoundDouble(const OracleFormat& f, double value, uint32_t random) {
  if (!std::isfinite(value)) return OracleSpecial(f, value);
  return value == 0 ? OracleValue{value} : OracleRoundBig(f, ToBig(value), random);
}

// The emulated sum with its counts.
struct OracleSums {
  double sum = 0;
  AdditionCounts counts;

  void Add(const OracleFormat& f, double addend, uint32_t random) {
    const OracleValue next = OracleAdd(f, sum, addend, random);
    ++counts.additions;
    counts.overflows += next.overflows;
    const bool stays = std::isfinite(next.value) && next.value == sum && addend != 0;
    counts.swamped += stays && !next.overflows;
    sum = next.value;
  }
};

// Sums terms with the indices that stochastic rounding counts by.
inline OracleSums OracleSum(const std::vector<OracleValue>& terms,
                            const std::vector<uint64_t>& indices, uint64_t first_chunk,
                            const AccumulationOptions& o) {
  const RandomStream partial_stream = {o.random.seed, o.random.stream + 3};
  const RandomStream chunk_stream = {o.random.seed, o.random.stream + 4};
  std::vector<OracleSums> partials;
  OracleSums total;
  for (size_t i = 0; i < terms.size(); ++i) {
    if (i % o.chunk_length == 0) partials.emplace_back();
    total.counts.overflows += terms[i].overflows;
    partials.back().Add(OracleOf(o.accumulator), terms[i].value,
                        RandomBits(partial_stream, indices[i]));
  }
  for (const OracleSums& partial : partials) total.counts.Merge(partial.counts);
  if (partials.size() == 1) total.sum = partials.front().sum;
  if (partials.size() <= 1) return total;
  for (size_t j = 0; j < partials.size(); ++j) {
    total.Add(OracleOf(o.combiner), partials[j].sum, RandomBits(chunk_stream, first_chunk + j));
  }
  return total;
}

inline std::vector<OracleValue> OracleInputs(const std::vector<float>& values,
                                             const AccumulationOptions& o, uint32_t offset) {
  std::vector<OracleValue> inputs;
  for (size_t i = 0; i < values.size(); ++i) {
    inputs.push_back({static_cast<double>(values[i])});
    if (o.inputs.kind != Precision::Kind::kFormat) continue;
    const uint32_t random = RandomBits({o.random.seed, o.random.stream + offset}, i);
    inputs.back() = OracleRoundDouble(OracleOf(o.inputs), inputs.back().value, random);
  }
  return inputs;
}

// The term of two inputs.
inline OracleValue OracleProduct(const OracleValue& a, const OracleValue& b, uint64_t index,
                                 const AccumulationOptions& o) {
  const double exact = a.value * b.value;  // float32 each: 48 bits
  if (o.terms.kind == Precision::Kind::kExact) return {exact};
  const uint32_t random = RandomBits({o.random.seed, o.random.stream + 2}, index);
  return OracleRoundDouble(OracleOf(o.terms), exact, random);
}

// Inputs as the terms of a sum: only what happens to sums and products is counted.
inline OracleValue OracleElement(const OracleValue& input) { return {input.value}; }

}  // namespace dlsim
