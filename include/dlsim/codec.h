// SPDX-License-Identifier: Apache-2.0
// The semantics of every conversion: Encode (float32 bits -> code), Decode (code -> float32 bits)
// and Classify. Written once over the lane operations of lanes.h, so that the scalar reference,
// SIMD kernels and CUDA kernels share this text. Rules: docs/numerics.md, section 2.
#pragma once

#include <array>
#include <cstdint>

#include "dlsim/enum_names.h"
#include "dlsim/format.h"
#include "dlsim/lanes.h"

namespace dlsim {

enum class Rounding : uint8_t {
  kNearestEven,
  kTowardZero,
  kNearestAway,  // ties away from zero
  kTowardPositive,
  kTowardNegative,
  kStochastic,  // up with probability equal to the distance
};

constexpr auto EnumNames(Rounding) {
  return std::to_array<EnumName<Rounding>>({{Rounding::kNearestEven, "rne"},
                                            {Rounding::kTowardZero, "rtz"},
                                            {Rounding::kNearestAway, "rna"},
                                            {Rounding::kTowardPositive, "ru"},
                                            {Rounding::kTowardNegative, "rd"},
                                            {Rounding::kStochastic, "sr"}});
}

// What a finite value that rounds past the largest finite one becomes.
enum class Overflow : uint8_t {
  kInfinity,  // infinity, as IEEE 754 rounds (directed modes may stop at the largest finite value)
  kSaturate,  // the largest finite value; infinities too
};

constexpr auto EnumNames(Overflow) {
  return std::to_array<EnumName<Overflow>>(
      {{Overflow::kInfinity, "inf"}, {Overflow::kSaturate, "saturate"}});
}

// What a subnormal result becomes.
enum class Subnormals : uint8_t { kKeep, kFlushToZero };

constexpr auto EnumNames(Subnormals) {
  return std::to_array<EnumName<Subnormals>>(
      {{Subnormals::kKeep, "keep"}, {Subnormals::kFlushToZero, "flush"}});
}

struct Conversion {
  Format format;
  Rounding rounding = Rounding::kNearestEven;
  Overflow overflow = Overflow::kInfinity;
  Subnormals subnormals = Subnormals::kKeep;

  friend constexpr bool operator==(const Conversion&, const Conversion&) = default;
};

// The constants of a conversion, computed once per call from the row of the format. "Magnitude"
// codes and bits are without sign.
struct CodecSpec {
  uint32_t dropped_bits;       // float32 mantissa bits that a normal result loses
  uint32_t rebias;             // float32 bits minus this, shifted by dropped_bits, is the code
  uint32_t min_normal_bits;    // float32 magnitudes below this become subnormal; 0 = none do
  uint32_t subnormal_shift;    // shift of a significand plus its float32 exponent field
  uint32_t max_code;           // largest finite magnitude
  uint32_t overflow_code;      // result of an infinite input, or of rounding past max_code
  uint32_t nan_code;           // quiet NaN, to which the payload is added
  uint32_t max_ordered_code;   // magnitudes above this are NaN
  uint32_t min_normal_code;    // smallest normal magnitude
  uint32_t flush_below;        // results below this become zero
  uint32_t sign_shift;         // from the sign bit of float32 to that of the code
  uint32_t min_positive_bits;  // float32 bits of the smallest positive value
  uint32_t plain_min_bits;     // float32 magnitudes from here to plain_max_bits have normal,
  uint32_t plain_max_bits;     // finite results in every rounding mode
  bool saturates;
  bool gradual;  // the format has subnormals
};

DLSIM_HOST_DEVICE constexpr CodecSpec MakeCodecSpec(const Conversion& conversion) {
  const Format& f = conversion.format;
  const bool gradual = f.denormals == Denormals::kGradual;
  const bool saturates =
      conversion.overflow == Overflow::kSaturate || f.specials == Specials::kFinite;
  const bool flushes = conversion.subnormals == Subnormals::kFlushToZero;
  const uint32_t rebias = static_cast<uint32_t>(127 - f.bias) << 23;
  const uint32_t dropped = static_cast<uint32_t>(23 - f.mantissa_bits);
  CodecSpec s{};
  s.dropped_bits = dropped;
  s.rebias = rebias;
  // With bias 127 float32's own subnormals are the format's: the normal path is right for them.
  s.min_normal_bits = gradual && f.bias < 127 ? rebias + (1u << 23) : 0;
  s.subnormal_shift = dropped + 128 - static_cast<uint32_t>(f.bias);
  s.max_code = MaxFiniteCode(f);
  s.overflow_code = saturates ? s.max_code : OverflowCode(f);
  s.nan_code = QuietNanCode(f);
  s.max_ordered_code = HasInfinity(f) ? OverflowCode(f) : MaxFiniteCode(f);
  s.min_normal_code = MinNormalCode(f);
  s.flush_below = flushes && gradual ? MinNormalCode(f) : 0;
  s.sign_shift = static_cast<uint32_t>(32 - CodeBits(f));
  s.min_positive_bits = rebias + (1u << dropped);
  s.plain_min_bits = rebias + (1u << 23);
  s.plain_max_bits = (s.max_code << dropped) + rebias;
  s.saturates = saturates;
  s.gradual = gradual;
  return s;
}

namespace codec {

inline constexpr uint32_t kSignBit = 0x80000000;
inline constexpr uint32_t kInfinityBits = 0x7F800000;
inline constexpr uint32_t kMantissaMask = 0x007FFFFF;
inline constexpr uint32_t kImplicitBit = 0x00800000;

}  // namespace codec

// The lane-generic text for one scalar lane.
namespace scalar {
#define DLSIM_LANE_FUNCTION DLSIM_HOST_DEVICE constexpr
#include "dlsim/codec.inc"
#undef DLSIM_LANE_FUNCTION
}  // namespace scalar

namespace codec {

// Rounds magnitudes between zero and the smallest positive value of a format without subnormals.
template <Rounding kRounding>
DLSIM_HOST_DEVICE constexpr uint32_t RoundBelowMinPositive(const CodecSpec& s, uint32_t magnitude,
                                                           bool negative, uint32_t random) {
  const uint32_t half = s.min_positive_bits - kImplicitBit;  // exponent less one
  if (magnitude == 0) return 0;
  if constexpr (kRounding == Rounding::kNearestEven) return magnitude > half;
  if constexpr (kRounding == Rounding::kNearestAway) return magnitude >= half;
  if constexpr (kRounding == Rounding::kTowardPositive) return !negative;
  if constexpr (kRounding == Rounding::kTowardNegative) return negative;
  if constexpr (kRounding == Rounding::kStochastic) {
    // Up with probability magnitude / min_positive, rounded down to a multiple of 2^-32.
    const uint32_t exponent = magnitude >> 23;
    const uint32_t unit_exponent = s.min_positive_bits >> 23;
    if (exponent == 0 || unit_exponent - exponent > 32) return 0;
    const uint64_t numerator = uint64_t{(magnitude & kMantissaMask) | kImplicitBit} << 32;
    const uint64_t unit = (s.min_positive_bits & kMantissaMask) | kImplicitBit;
    return random < ((numerator >> (unit_exponent - exponent)) / unit);
  }
  return 0;
}

}  // namespace codec

// A code with what became of the value.
struct EncodeResult {
  uint32_t code = 0;
  bool overflows = false;  // finite input, output infinity (or clamped when saturating)
};

// Encodes one float32 bit pattern. NaN keeps its sign and top mantissa bits and becomes quiet; -0
// and negative values that underflow become -0. `random` are 32 random bits for kStochastic.
template <Rounding kRounding>
DLSIM_HOST_DEVICE constexpr EncodeResult EncodeWith(const CodecSpec& spec, uint32_t bits,
                                                    uint32_t random) {
  constexpr ScalarLanes kLanes;
  const uint32_t magnitude = bits & ~codec::kSignBit;
  const bool negative = magnitude != bits;
  const uint32_t sign = scalar::SignOfCode(kLanes, spec, bits);
  if (!spec.gradual && magnitude < spec.min_positive_bits) {
    return {sign | codec::RoundBelowMinPositive<kRounding>(spec, magnitude, negative, random)};
  }
  const auto result = scalar::EncodeMagnitude<kRounding>(kLanes, spec, bits, random);
  return {sign | result.magnitude, magnitude < codec::kInfinityBits && result.overflows};
}

// As above for a rounding mode known at run time.
DLSIM_HOST_DEVICE constexpr EncodeResult Encode(const CodecSpec& spec, Rounding rounding,
                                                uint32_t bits, uint32_t random = 0) {
  switch (rounding) {
    case Rounding::kNearestEven:
      return EncodeWith<Rounding::kNearestEven>(spec, bits, random);
    case Rounding::kTowardZero:
      return EncodeWith<Rounding::kTowardZero>(spec, bits, random);
    case Rounding::kNearestAway:
      return EncodeWith<Rounding::kNearestAway>(spec, bits, random);
    case Rounding::kTowardPositive:
      return EncodeWith<Rounding::kTowardPositive>(spec, bits, random);
    case Rounding::kTowardNegative:
      return EncodeWith<Rounding::kTowardNegative>(spec, bits, random);
    case Rounding::kStochastic:
      return EncodeWith<Rounding::kStochastic>(spec, bits, random);
  }
  return {};
}

// Returns the float32 bits of a code; exact, signaling NaN codes become quiet.
DLSIM_HOST_DEVICE constexpr uint32_t Decode(const CodecSpec& spec, uint32_t code) {
  const uint32_t sign = (code << spec.sign_shift) & codec::kSignBit;
  const uint32_t magnitude = code & ((codec::kSignBit >> spec.sign_shift) - 1);
  return sign | scalar::DecodeMagnitude(ScalarLanes(), spec, magnitude);
}

enum class CodeClass : uint8_t { kZero, kSubnormal, kNormal, kInfinity, kNan };

// Returns what kind of value a code stands for.
DLSIM_HOST_DEVICE constexpr CodeClass Classify(const CodecSpec& spec, uint32_t code) {
  const uint32_t magnitude = code & ((codec::kSignBit >> spec.sign_shift) - 1);
  if (magnitude == 0) return CodeClass::kZero;
  if (magnitude > spec.max_ordered_code) return CodeClass::kNan;
  if (magnitude > spec.max_code) return CodeClass::kInfinity;
  return magnitude < spec.min_normal_code ? CodeClass::kSubnormal : CodeClass::kNormal;
}

}  // namespace dlsim
