// SPDX-License-Identifier: Apache-2.0
// Formats known at compile time: a shorter form of the rounding of codec.inc, which is the part
// that takes most instructions.
#pragma once

#include <cstdint>

#include "dlsim/codec.h"

namespace dlsim::gpu {

// A conversion to an IEEE-like format of 16 bits that is known at compile time.
template <Format kFormat>
struct TunedCodec {
  uint32_t overflow_code;
  uint32_t flush_below;

  DLSIM_HOST_DEVICE constexpr CodecSpec spec() const {
    CodecSpec spec = MakeCodecSpec({kFormat});
    spec.overflow_code = overflow_code;
    spec.flush_below = flush_below;
    spec.saturates = overflow_code == spec.max_code;
    return spec;
  }
};

template <Format kFormat>
constexpr TunedCodec<kFormat> MakeTunedCodec(const Conversion& conversion) {
  static_assert(CodeBits(kFormat) == 16 && HasInfinity(kFormat));
  static_assert(kFormat.denormals == Denormals::kGradual);
  const CodecSpec spec = MakeCodecSpec(conversion);
  return {spec.overflow_code, spec.flush_below};
}

namespace tuned {

DLSIM_HOST_DEVICE constexpr uint32_t Min(uint32_t a, uint32_t b) { return a < b ? a : b; }
DLSIM_HOST_DEVICE constexpr uint32_t Max(uint32_t a, uint32_t b) { return a < b ? b : a; }

// What rounding to a multiple of a power of two by one float32 addition gives.
struct RoundedSum {
  uint32_t code;  // magnitude; infinity and all that rounds there become one past max_code or more
  float value;    // the magnitude that the code stands for
};

// Rounds to nearest even. Let 2^e be the power of two at or below |x|, or the smallest normal if
// that is larger. A result in this binade is a multiple of 2^(e + d - 23), d being dropped_bits,
// and so is the last bit of the sum |x| + 2^(e + d): the addition rounds as the format does, for
// subnormal results too. The sum's distance from 2^(e + d) in last bits, plus a binade's codes for
// each of those below, is the code. The product is exact: fused or not, the sum is the same.
template <Format kFormat>
DLSIM_HOST_DEVICE inline RoundedSum RoundBySum(uint32_t bits) {
  constexpr CodecSpec kSpec = MakeCodecSpec({kFormat});
  constexpr uint32_t kShift = kSpec.dropped_bits << 23;
  constexpr uint32_t kLimit = ((kSpec.max_code + 1) << kSpec.dropped_bits) + kSpec.rebias;
  constexpr uint32_t kFirst = (kSpec.min_normal_bits >> kSpec.dropped_bits) + kShift;
  const float magnitude = BitCast<float>(bits & ~codec::kSignBit);
  const uint32_t exponent = bits & codec::kInfinityBits;
  const uint32_t power = Min(Max(exponent, kSpec.min_normal_bits), kLimit);
  const float magic = BitCast<float>(power) * BitCast<float>((127u << 23) + kShift);
  const float sum = magnitude + magic;
  const uint32_t offset = BitCast<uint32_t>(sum) + (power >> kSpec.dropped_bits);
  return {offset - power - kFirst, sum - magic};
}

// Whether the direction of rounding keeps a finite value from becoming infinite. May be anything
// for NaN.
template <Rounding kRounding>
DLSIM_HOST_DEVICE constexpr bool StaysFinite(uint32_t bits) {
  if constexpr (kRounding == Rounding::kTowardZero) {
    return (bits & ~codec::kSignBit) < codec::kInfinityBits;
  } else if constexpr (kRounding == Rounding::kTowardPositive) {
    // Negative and not infinite: one comparison, as signed integers.
    return static_cast<int32_t>(bits) <
           static_cast<int32_t>(codec::kSignBit | codec::kInfinityBits);
  } else if constexpr (kRounding == Rounding::kTowardNegative) {
    return bits < codec::kInfinityBits;
  }
  return false;
}

// Rounds the magnitude of `bits`, as RoundMagnitude of codec.inc does, but for infinity and NaN:
// infinity becomes something past max_code.
template <Format kFormat, Rounding kRounding>
DLSIM_HOST_DEVICE inline uint32_t RoundMagnitude(uint32_t bits) {
  static_assert(kRounding != Rounding::kStochastic);
  constexpr CodecSpec kSpec = MakeCodecSpec({kFormat});
  const uint32_t magnitude = bits & ~codec::kSignBit;
  if constexpr (kSpec.min_normal_bits == 0) {
    // Without subnormals to tell apart the definition is short.
    const bool negative = magnitude != bits;
    return scalar::RoundMagnitude<kRounding>(ScalarLanes(), kSpec, magnitude, negative, 0u);
  } else if constexpr (kRounding == Rounding::kNearestEven) {
    return RoundBySum<kFormat>(bits).code;
  } else if constexpr (kRounding == Rounding::kNearestAway) {
    // The last bit turns a tie into more than half and changes no other result but infinity's.
    return RoundBySum<kFormat>(bits | 1).code;
  } else {
    const RoundedSum nearest = RoundBySum<kFormat>(bits);
    const float value = BitCast<float>(magnitude);
    const bool down = kRounding == Rounding::kTowardZero || StaysFinite<kRounding>(bits);
    uint32_t code = nearest.code;
    if (down && nearest.value > value) --code;
    if (!down && nearest.value < value) ++code;
    return code;
  }
}

enum class Nan { kEncode, kIgnore };

// Applies the rules of BoundMagnitude and EncodeMagnitude of codec.inc to a rounded magnitude, but
// for the one of subnormals, which Flush applies, and for NaN if it is to be ignored.
template <Rounding kRounding, Nan kNan, Format kFormat>
DLSIM_HOST_DEVICE inline EncodeResult Finish(const TunedCodec<kFormat>& codec, uint32_t bits,
                                             uint32_t rounded) {
  constexpr CodecSpec kSpec = MakeCodecSpec({kFormat});
  const uint32_t past_max = StaysFinite<kRounding>(bits) ? kSpec.max_code : codec.overflow_code;
  uint32_t code = Min(rounded, past_max);
  const uint32_t magnitude = bits & ~codec::kSignBit;
  if constexpr (kNan == Nan::kEncode) {
    const uint32_t nan = ((bits >> kSpec.dropped_bits) & MagnitudeMask(kFormat)) | kSpec.nan_code;
    code = magnitude > codec::kInfinityBits ? nan : code;
  }
  const uint32_t sign = (bits >> kSpec.sign_shift) & (codec::kSignBit >> kSpec.sign_shift);
  const bool beyond = rounded > kSpec.max_code && magnitude < codec::kInfinityBits;
  return {sign | code, beyond && past_max == codec.overflow_code};
}

// Returns the code with a subnormal made zero, if the policy is so.
template <Format kFormat>
DLSIM_HOST_DEVICE inline uint32_t Flush(const TunedCodec<kFormat>& codec, uint32_t code) {
  const uint32_t magnitude = code & MagnitudeMask(kFormat);
  return magnitude < codec.flush_below ? code - magnitude : code;
}

// Writes a magnitude as its code followed by 16 bits of fraction, cut. The last bit of a normal
// result is bit d of float32; each binade below the smallest normal shifts one further.
template <Format kFormat>
DLSIM_HOST_DEVICE inline uint32_t FixedPoint(uint32_t bits) {
  constexpr CodecSpec kSpec = MakeCodecSpec({kFormat});
  static_assert(kSpec.dropped_bits <= 16);
  constexpr uint32_t kLimit = ((kSpec.max_code + 1) << kSpec.dropped_bits) + kSpec.rebias;
  constexpr uint32_t kMinExponent = kSpec.min_normal_bits >> 23;
  const uint32_t magnitude = Min(bits & ~codec::kSignBit, kLimit);
  if constexpr (kSpec.min_normal_bits == 0) return magnitude << (16 - kSpec.dropped_bits);
  const uint32_t significand = (magnitude & codec::kMantissaMask) | codec::kImplicitBit;
  const uint32_t exponent = magnitude >> 23;
  const uint32_t power = Max(exponent, kMinExponent);
  const uint32_t shifted = (significand << (16 - kSpec.dropped_bits)) >> Min(power - exponent, 31u);
  return shifted + ((power - kMinExponent) << (39 - kSpec.dropped_bits));
}

}  // namespace tuned

}  // namespace dlsim::gpu
