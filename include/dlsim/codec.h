// SPDX-License-Identifier: Apache-2.0
// The semantics of every conversion: Encode (float32 bits -> code), Decode (code -> float32 bits)
// and Classify. The CPU's kernels, of any SIMD target, and those for CUDA compile this text.
// Rules: docs/numerics.md, section 2. The random bits of stochastic rounding come last.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "dlsim/enum_names.h"
#include "dlsim/format.h"

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
  uint32_t max_bits;           // float32 bits of the largest finite value
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
  s.max_bits = (s.max_code << dropped) + rebias;
  s.saturates = saturates;
  s.gradual = gradual;
  return s;
}

// A code with what became of the value.
struct EncodeResult {
  uint32_t code = 0;
  uint32_t overflows = 0;  // all ones: finite input became infinity, or was clamped; else zero
};

namespace codec {

inline constexpr uint32_t kSignBit = 0x80000000;
inline constexpr uint32_t kInfinityBits = 0x7F800000;
inline constexpr uint32_t kMantissaMask = 0x007FFFFF;
inline constexpr uint32_t kImplicitBit = 0x00800000;

// A condition as a word, all ones or zero. Without branches compilers vectorize a loop over the
// definition, whose conditions they would otherwise turn into some.
using Mask = uint32_t;

DLSIM_HOST_DEVICE constexpr Mask MaskOf(bool condition) { return 0u - uint32_t{condition}; }

DLSIM_HOST_DEVICE constexpr uint32_t Select(Mask mask, uint32_t yes, uint32_t no) {
  return mask != 0 ? yes : no;
}

DLSIM_HOST_DEVICE constexpr uint32_t Min(uint32_t a, uint32_t b) { return a < b ? a : b; }
DLSIM_HOST_DEVICE constexpr uint32_t Max(uint32_t a, uint32_t b) { return a < b ? b : a; }

// Returns 1 to round `kept` up, given the remainder of `shift` dropped bits; else 0.
template <Rounding kRounding>
DLSIM_HOST_DEVICE constexpr uint32_t RoundUp(uint32_t kept, uint32_t remainder, uint32_t shift,
                                             Mask negative) {
  if constexpr (kRounding == Rounding::kNearestEven) {
    // Above half, or a tie whose kept part is odd.
    return MaskOf(1u << (shift - 1) < remainder + (kept & 1)) & 1;
  } else if constexpr (kRounding == Rounding::kNearestAway) {
    return MaskOf(1u << (shift - 1) <= remainder) & 1;
  } else if constexpr (kRounding == Rounding::kTowardPositive) {
    return MaskOf(remainder > 0) & ~negative & 1;
  } else if constexpr (kRounding == Rounding::kTowardNegative) {
    return MaskOf(remainder > 0) & negative & 1;
  } else {
    return 0;
  }
}

// Stochastic rounding adds the top d random bits to the d dropped bits and carries out of them.
// The carry happens exactly if the complement of the random bits is below the remainder. From
// d = 33 on, `excess` = d - 32 low bits of the remainder are cut: probability in units of 2^-32.
DLSIM_HOST_DEVICE constexpr uint32_t RoundUpStochastic(uint32_t remainder, uint32_t full_shift,
                                                       uint32_t random) {
  const uint32_t used = Min(full_shift, 32);
  const uint32_t excess = Min(full_shift - used, 31);
  return MaskOf(~random >> (32 - used) < remainder >> excess) & 1;
}

// Rounds a float32 magnitude to the format with an unbounded exponent range upwards: the result is
// the magnitude code, where one past max_code and above means overflow. Not for NaN, nor for
// values below min_positive_bits of a format without subnormals.
template <Rounding kRounding>
DLSIM_HOST_DEVICE constexpr uint32_t RoundMagnitude(const CodecSpec& s, uint32_t magnitude,
                                                    Mask negative, uint32_t random) {
  // A subnormal result shifts the significand further the smaller the exponent. float32's own
  // subnormals have the exponent of its smallest normals and no implicit bit.
  const Mask subnormal = MaskOf(magnitude < s.min_normal_bits);
  const uint32_t exponent = Max(magnitude >> 23, 1);
  const uint32_t implicit = MaskOf(magnitude >= kImplicitBit) & kImplicitBit;
  const uint32_t significand = (magnitude & kMantissaMask) | implicit;

  const uint32_t source = Select(subnormal, significand, magnitude - s.rebias);
  const uint32_t full_shift = Select(subnormal, s.subnormal_shift - exponent, s.dropped_bits);
  // Significands have 24 bits: every shift from 26 on is the same as 31.
  const uint32_t shift = Min(full_shift, 31);
  const uint32_t kept = source >> shift;
  const uint32_t remainder = source - (kept << shift);
  if constexpr (kRounding == Rounding::kStochastic) {
    return kept + RoundUpStochastic(remainder, full_shift, random);
  } else {
    // A carry out of the mantissa increments the exponent, which is the next code.
    return kept + RoundUp<kRounding>(kept, remainder, shift, negative);
  }
}

// Applies the overflow and subnormal rules to a rounded magnitude; `input` is the float32
// magnitude it came from, not NaN.
template <Rounding kRounding>
DLSIM_HOST_DEVICE constexpr EncodeResult BoundMagnitude(const CodecSpec& s, uint32_t rounded,
                                                        uint32_t input, Mask negative) {
  const Mask beyond = MaskOf(s.max_code < rounded);
  Mask stays_finite = 0;  // by the direction of rounding
  if constexpr (kRounding == Rounding::kTowardZero) stays_finite = ~0u;
  if constexpr (kRounding == Rounding::kTowardPositive) stays_finite = negative;
  if constexpr (kRounding == Rounding::kTowardNegative) stays_finite = ~negative;
  uint32_t code = Select(beyond, Select(stays_finite, s.max_code, s.overflow_code), rounded);
  code = Select(MaskOf(input == kInfinityBits), s.overflow_code, code);
  const Mask saturates = MaskOf(s.overflow_code == s.max_code);
  return {code & MaskOf(code >= s.flush_below), beyond & (~stays_finite | saturates)};
}

// Rounds magnitudes between zero and the smallest positive value of a format without subnormals, to
// 0 or 1.
template <Rounding kRounding>
DLSIM_HOST_DEVICE constexpr uint32_t RoundBelowMinPositive(const CodecSpec& s, uint32_t magnitude,
                                                           Mask negative, uint32_t random) {
  const uint32_t half = s.min_positive_bits - kImplicitBit;  // exponent less one
  Mask up = 0;
  if constexpr (kRounding == Rounding::kNearestEven) up = MaskOf(magnitude > half);
  if constexpr (kRounding == Rounding::kNearestAway) up = MaskOf(magnitude >= half);
  if constexpr (kRounding == Rounding::kTowardPositive) up = ~negative;
  if constexpr (kRounding == Rounding::kTowardNegative) up = negative;
  if constexpr (kRounding == Rounding::kStochastic) {
    // Up with probability magnitude / min_positive, rounded down to a multiple of 2^-32.
    const uint32_t exponent = magnitude >> 23;
    const uint32_t shift = (s.min_positive_bits >> 23) - exponent;
    const uint64_t numerator = uint64_t{(magnitude & kMantissaMask) | kImplicitBit} << 32;
    const uint64_t unit = (s.min_positive_bits & kMantissaMask) | kImplicitBit;
    up = MaskOf((uint64_t{random} + 1) * unit <= numerator >> Min(shift, 32)) &
         MaskOf(exponent != 0) & MaskOf(shift <= 32);
  }
  return up & MaskOf(magnitude != 0) & 1;
}

// Returns the float32 magnitude bits of a magnitude code. Exact; NaN becomes quiet.
DLSIM_HOST_DEVICE constexpr uint32_t DecodeMagnitude(const CodecSpec& s, uint32_t magnitude) {
  const uint32_t shifted = magnitude << s.dropped_bits;
  uint32_t bits = shifted + s.rebias;
  if (!s.gradual) {
    bits &= MaskOf(magnitude != 0);
  } else if (s.min_normal_bits != 0) {
    // With the exponent of the smallest normal the mantissa is off by exactly that normal. Both
    // operands and the result are normal float32 values: no rounding, no flushing.
    const float difference =
        BitCast<float>(shifted + s.min_normal_bits) - BitCast<float>(s.min_normal_bits);
    const Mask subnormal = MaskOf(magnitude < s.min_normal_code);
    bits = Select(subnormal, BitCast<uint32_t>(difference) & ~kSignBit, bits);
  }
  const uint32_t special = (shifted & kMantissaMask) | kInfinityBits;
  const uint32_t quiet = MaskOf(magnitude > s.max_ordered_code) & 0x00400000;
  return Select(MaskOf(magnitude > s.max_code), special | quiet, bits);
}

}  // namespace codec

// Encodes one float32 bit pattern. NaN keeps its sign and top mantissa bits and becomes quiet; -0
// and negative values that underflow become -0. `random` are 32 random bits for kStochastic.
template <Rounding kRounding>
DLSIM_HOST_DEVICE constexpr EncodeResult EncodeWith(const CodecSpec& s, uint32_t bits,
                                                    uint32_t random) {
  using namespace codec;
  const uint32_t magnitude = bits & ~kSignBit;
  const Mask negative = MaskOf(bits != magnitude);
  const uint32_t sign = (bits & kSignBit) >> s.sign_shift;
  if (!s.gradual && magnitude < s.min_positive_bits) {
    return {sign | RoundBelowMinPositive<kRounding>(s, magnitude, negative, random), 0};
  }
  const uint32_t rounded = RoundMagnitude<kRounding>(s, magnitude, negative, random);
  const EncodeResult bounded = BoundMagnitude<kRounding>(s, rounded, magnitude, negative);
  const uint32_t payload = (magnitude & kMantissaMask) >> s.dropped_bits;
  const Mask nan = MaskOf(magnitude > kInfinityBits);
  return {sign | Select(nan, s.nan_code | payload, bounded.code),
          bounded.overflows & MaskOf(magnitude < kInfinityBits)};
}

// Returns body(std::integral_constant) for a rounding mode known at run time. The body may be the
// host's alone, which nvcc would warn of.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <class Body>
DLSIM_HOST_DEVICE constexpr auto WithRounding(Rounding rounding, const Body& body) {
  switch (rounding) {
    case Rounding::kNearestEven:
      return body(std::integral_constant<Rounding, Rounding::kNearestEven>());
    case Rounding::kTowardZero:
      return body(std::integral_constant<Rounding, Rounding::kTowardZero>());
    case Rounding::kNearestAway:
      return body(std::integral_constant<Rounding, Rounding::kNearestAway>());
    case Rounding::kTowardPositive:
      return body(std::integral_constant<Rounding, Rounding::kTowardPositive>());
    case Rounding::kTowardNegative:
      return body(std::integral_constant<Rounding, Rounding::kTowardNegative>());
    case Rounding::kStochastic:
      break;
  }
  return body(std::integral_constant<Rounding, Rounding::kStochastic>());
}

// As EncodeWith.
DLSIM_HOST_DEVICE constexpr EncodeResult Encode(const CodecSpec& spec, Rounding rounding,
                                                uint32_t bits, uint32_t random = 0) {
  return WithRounding(
      rounding, [&](auto mode) { return EncodeWith<decltype(mode)::value>(spec, bits, random); });
}

// Returns whether stochastic rounding needs more than the upper 16 of the random bits: always if a
// normal result drops more, else for subnormal results.
DLSIM_HOST_DEVICE constexpr bool NeedsLowRandomBits(const CodecSpec& spec, uint32_t bits) {
  const uint32_t magnitude = bits & ~codec::kSignBit;
  const uint32_t below = spec.gradual ? spec.min_normal_bits : spec.min_positive_bits;
  return spec.dropped_bits > 16 || (magnitude != 0 && magnitude < below);
}

// Returns the float32 bits of a code; exact, signaling NaN codes become quiet.
DLSIM_HOST_DEVICE constexpr uint32_t Decode(const CodecSpec& spec, uint32_t code) {
  const uint32_t sign = (code << spec.sign_shift) & codec::kSignBit;
  const uint32_t magnitude = code & ((codec::kSignBit >> spec.sign_shift) - 1);
  return sign | codec::DecodeMagnitude(spec, magnitude);
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

// Philox4x32-10, the counter-based random generator of Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011), and its use for stochastic rounding.

// A counter that becomes a block of random bits.
struct PhiloxBlock {
  uint32_t word[4];
};

// The constants of the paper: the multipliers of words 0 and 2, the steps of the key's two words.
inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9, kPhiloxWeyl1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

// Returns the random block of a counter under a 64-bit key.
DLSIM_HOST_DEVICE constexpr PhiloxBlock Philox4x32(PhiloxBlock c, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{c.word[0]} * kPhiloxMultiplier0;
    const uint64_t product1 = uint64_t{c.word[2]} * kPhiloxMultiplier1;
    c = {{static_cast<uint32_t>(product1 >> 32) ^ c.word[1] ^ key0, static_cast<uint32_t>(product1),
          static_cast<uint32_t>(product0 >> 32) ^ c.word[3] ^ key1,
          static_cast<uint32_t>(product0)}};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return c;
}

// Where the random bits of an array come from: the result depends on these and on the index of the
// element alone, never on threads, vector width or device.
struct RandomStream {
  uint64_t seed = 0;
  uint32_t stream = 0;  // 0 for conversions; a hash of tensor name and step in a replay
};

// One Philox block serves eight elements with 16 bits each. Plane 0 holds the high halves of their
// 32 random bits, plane 1 the low halves.
inline constexpr uint64_t kElementsPerPhiloxBlock = 8;

// Returns the 32 random bits of element `index`.
DLSIM_HOST_DEVICE constexpr uint32_t RandomBits(const RandomStream& random, uint64_t index) {
  const uint64_t block = index / kElementsPerPhiloxBlock;
  const uint64_t half = index % kElementsPerPhiloxBlock;
  uint32_t bits = 0;
  for (uint32_t plane = 0; plane < 2; ++plane) {
    const PhiloxBlock counter = {
        {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), random.stream, plane}};
    const uint32_t word = Philox4x32(counter, random.seed).word[half / 2];
    bits = (bits << 16) | ((word >> (16 * (half % 2))) & 0xFFFF);
  }
  return bits;
}

}  // namespace dlsim
