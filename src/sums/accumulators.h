// SPDX-License-Identifier: Apache-2.0
// One addition of an emulated sum: the exact sum, rounded once. An inexact sum is first rounded to
// odd (Boldo and Melquiond, 2008), which any later rounding to at least two bits less cannot tell
// from the exact one.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <variant>

#include "dlsim/accumulate.h"
#include "dlsim/codec.h"
#include "dlsim/philox.h"

namespace dlsim {

// A value with what became of it.
struct Rounded {
  float value = 0;
  bool overflows = false;  // finite before, infinite (or clamped) now
};

// Returns a + b, rounded to odd. The magnitudes are 0 or from 2^-298 to 2^257, or not finite.
inline double OddSum(double a, double b) {
  const double sum = a + b;
  const double part = sum - a;
  const double error = (a - (sum - part)) + (b - part);  // exact: Knuth's TwoSum
  if (error == 0 || !std::isfinite(sum)) return sum;
  const uint64_t bits = std::bit_cast<uint64_t>(sum);
  if (bits % 2 != 0) return sum;
  return std::bit_cast<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

// Returns the float32 bits of a double, rounded to odd; a finite one stays finite.
inline uint32_t OddFloatBits(double x) {
  const float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (back == x || bits % 2 != 0 || std::isnan(x)) return bits;
  return std::fabs(back) > std::fabs(x) ? bits - 1 : bits + 1;
}

// RandomBits of elements in nearly ascending order: the blocks of one serve the next seven.
class RandomSequence {
 public:
  explicit RandomSequence(const RandomStream& random, uint32_t offset)
      : random_{random.seed, random.stream + offset} {}

  uint32_t operator()(uint64_t index) {
    if (index / kElementsPerPhiloxBlock != block_) Fill(index / kElementsPerPhiloxBlock);
    return bits_[index % kElementsPerPhiloxBlock];
  }

 private:
  void Fill(uint64_t block) {
    block_ = block;
    for (const uint32_t plane : {0u, 1u}) {
      const PhiloxBlock<uint32_t> counter = {{static_cast<uint32_t>(block),
                                              static_cast<uint32_t>(block >> 32), random_.stream,
                                              plane}};
      const auto words = scalar::Philox4x32(ScalarLanes(), counter, random_.seed);
      for (size_t i = 0; i < kElementsPerPhiloxBlock; ++i) {
        bits_[i] = (bits_[i] << 16) | ((words.word[i / 2] >> (16 * (i % 2))) & 0xFFFF);
      }
    }
  }

  RandomStream random_;
  uint64_t block_ = std::numeric_limits<uint64_t>::max();
  uint32_t bits_[kElementsPerPhiloxBlock] = {};
};

// Rounds to float32, to nearest even.
class Float32Rounder {
 public:
  static constexpr bool kUsesRandom = false;

  Rounded Round(double odd, uint32_t) const { return Of(static_cast<float>(odd), odd); }
  Rounded Add(float sum, double addend, uint32_t) const {
    const double odd = OddSum(static_cast<double>(sum), addend);
    return Of(static_cast<float>(odd), odd);
  }
  // float32 addition itself is the exact sum rounded once.
  Rounded Add(float sum, float addend, uint32_t) const {
    const float result = sum + addend;
    return {result, std::isinf(result) && std::isfinite(sum) && std::isfinite(addend)};
  }

 private:
  static Rounded Of(float value, double odd) {
    return {value, std::isinf(value) && std::isfinite(odd)};
  }
};

// Rounds by a conversion.
template <Rounding kRounding>
class FormatRounder {
 public:
  static constexpr bool kUsesRandom = kRounding == Rounding::kStochastic;

  explicit FormatRounder(const Conversion& conversion)
      : spec_(MakeCodecSpec(conversion)),
        mantissa_bits_(conversion.format.mantissa_bits),
        min_exponent_((spec_.gradual ? 1 : 0) - conversion.format.bias),
        min_positive_(std::bit_cast<float>(spec_.min_positive_bits)) {}

  // Rounds an exact value, or one that was rounded to odd.
  Rounded Round(double odd, uint32_t random) const {
    if constexpr (kUsesRandom) {
      return RoundStochastic(odd, random);
    } else {
      return RoundDirect(odd);
    }
  }
  Rounded Add(float sum, double addend, uint32_t random) const {
    return Round(OddSum(static_cast<double>(sum), addend), random);
  }
  Rounded Add(float sum, float addend, uint32_t random) const {
    if constexpr (!kUsesRandom) {
      // Mostly float32 holds the exact sum; not where the error is not zero, or NaN.
      const float exact = sum + addend;
      const float part = exact - sum;
      const float error = (sum - (exact - part)) + (addend - part);
      if (error == 0) return RoundBits(std::bit_cast<uint32_t>(exact));
    }
    return Add(sum, static_cast<double>(addend), random);
  }

 private:
  Rounded RoundDirect(double odd) const {
    Rounded result = RoundBits(OddFloatBits(odd));
    // Beyond float32 the codec saw its largest value, which some formats and modes just truncate.
    result.overflows |= spec_.saturates && std::fabs(odd) >= 0x1p128 && std::isfinite(odd);
    return result;
  }
  Rounded RoundBits(uint32_t bits) const {
    const uint32_t magnitude = bits & ~codec::kSignBit;
    if (spec_.gradual && magnitude - spec_.plain_min_bits <= PlainRange()) {
      const bool negative = magnitude != bits;
      const uint32_t plain =
          scalar::QuantizePlain<kRounding>(ScalarLanes(), spec_, magnitude, negative, 0);
      return {std::bit_cast<float>((bits & codec::kSignBit) | plain)};
    }
    return Recode<kRounding>(bits, 0);
  }
  uint32_t PlainRange() const { return spec_.plain_max_bits - spec_.plain_min_bits; }

  template <Rounding kMode>
  Rounded Recode(uint32_t bits, uint32_t random) const {
    const EncodeResult result = EncodeWith<kMode>(spec_, bits, random);
    return {std::bit_cast<float>(Decode(spec_, result.code)), result.overflows};
  }

  // The codec's stochastic rounding, of a double: up if the complement of the random bits is below
  // the fraction of the unit in the last place, in units of 2^-32. float32 would cut the fraction.
  Rounded RoundStochastic(double odd, uint32_t random) const {
    const double magnitude = std::fabs(odd);
    const bool below_normal = !spec_.gradual && magnitude < static_cast<double>(min_positive_);
    if (below_normal || magnitude == 0 || !std::isfinite(magnitude)) {
      return Recode<kRounding>(OddFloatBits(odd), random);
    }
    const int exponent = static_cast<int>(std::bit_cast<uint64_t>(magnitude) >> 52) - 1023;
    const int unit = std::max(exponent, min_exponent_) - mantissa_bits_;
    const double units = magnitude * PowerOfTwo(-unit);
    const uint32_t kept = static_cast<uint32_t>(units);
    const uint64_t fraction = static_cast<uint64_t>((units - kept) * 0x1p32);
    const double result = (kept + (~random < fraction ? 1.0 : 0.0)) * PowerOfTwo(unit);
    // Beyond float32 is beyond every format, as is its largest value.
    const double bounded = std::min(result, static_cast<double>(std::numeric_limits<float>::max()));
    const float exact = static_cast<float>(std::copysign(bounded, odd));
    return Recode<Rounding::kNearestEven>(std::bit_cast<uint32_t>(exact), 0);
  }
  static double PowerOfTwo(int exponent) {
    return std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52);
  }

  CodecSpec spec_;
  int mantissa_bits_;
  int min_exponent_;
  float min_positive_;
};

// Calls body(rounder) with the rounder of a precision, which is not kExact.
template <class Body>
auto WithRounder(const Precision& precision, const Body& body) {
  const Conversion& conversion = precision.conversion;
  if (precision.kind != Precision::Kind::kFormat) return body(Float32Rounder());
  switch (conversion.rounding) {
    case Rounding::kTowardZero:
      return body(FormatRounder<Rounding::kTowardZero>(conversion));
    case Rounding::kNearestAway:
      return body(FormatRounder<Rounding::kNearestAway>(conversion));
    case Rounding::kTowardPositive:
      return body(FormatRounder<Rounding::kTowardPositive>(conversion));
    case Rounding::kTowardNegative:
      return body(FormatRounder<Rounding::kTowardNegative>(conversion));
    case Rounding::kStochastic:
      return body(FormatRounder<Rounding::kStochastic>(conversion));
    case Rounding::kNearestEven:
      break;
  }
  return body(FormatRounder<Rounding::kNearestEven>(conversion));
}

// A rounder whose kind is known at run time.
class AnyRounder {
 public:
  explicit AnyRounder(const Precision& precision)
      : rounder_(WithRounder(precision, [](const auto& rounder) { return Variant(rounder); })) {}

  // Rounds an exact value, or one that was rounded to odd.
  Rounded Round(double odd, uint64_t index, RandomSequence& random) const {
    return std::visit(
        [&]<class Rounder>(const Rounder& rounder) {
          return rounder.Round(odd, Rounder::kUsesRandom ? random(index) : 0);
        },
        rounder_);
  }

 private:
  using Variant =
      std::variant<Float32Rounder, FormatRounder<Rounding::kNearestEven>,
                   FormatRounder<Rounding::kTowardZero>, FormatRounder<Rounding::kNearestAway>,
                   FormatRounder<Rounding::kTowardPositive>,
                   FormatRounder<Rounding::kTowardNegative>, FormatRounder<Rounding::kStochastic>>;
  Variant rounder_;
};

// A sum in the making.
struct PartialSum {
  float sum = 0;
  AdditionCounts counts;
};

// Adds one addend, float or double.
template <class Rounder, class Addend>
inline void AddTo(const Rounder& rounder, Addend addend, uint32_t random, PartialSum& partial) {
  const Rounded next = rounder.Add(partial.sum, addend, random);
  partial.counts.additions += 1;
  partial.counts.overflows += next.overflows;
  // A sum that is not finite, or is clamped, stays: that is no swamping. Without branches: which
  // additions change nothing is hard to predict.
  const bool stays = next.value == partial.sum, counts = addend != 0 && !next.overflows;
  partial.counts.swamped += static_cast<uint64_t>(stays) & static_cast<uint64_t>(counts) &
                            static_cast<uint64_t>(std::isfinite(next.value));
  partial.sum = next.value;
}

}  // namespace dlsim
