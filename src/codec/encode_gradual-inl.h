// SPDX-License-Identifier: Apache-2.0
// Encodes to a 16-bit format with subnormals by one float32 addition per element; re-included per
// SIMD target.
//
// Let 2^e be the power of two at or below |x|, or the format's smallest normal if that is larger. A
// result in this binade is a multiple of the quantum q = 2^(e - m), m being the format's mantissa
// bits. The sum y = x + magic, magic = +-2^(e + d) (1 + K 2^-23) with the sign of x and d = 23 - m,
// stays in the binade of magic because d is 2 or more, and there q is the last bit of float32. So
// the addition rounds x to a multiple of q, as the format would, and the mantissa of y is K + r
// with r = |x| / q rounded: 2^m to 2^(m + 1) if the result is normal, the code itself if it is
// subnormal. As K is even the parity of ties is that of r. The code is
//   ((e - e_min) << m) + r = low16(y) + (biased exponent of y << m)
// if K = -(biased exponent of y for the smallest normal) << m; carries into the next binade, and
// from the largest finite value to infinity, come out by themselves.
#if defined(DLSIM_ENCODE_GRADUAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_ENCODE_GRADUAL_INL_H_
#undef DLSIM_ENCODE_GRADUAL_INL_H_
#else
#define DLSIM_ENCODE_GRADUAL_INL_H_
#endif

#include <cfenv>
#include <cstdint>

#include "dlsim/codec.h"
#include "src/codec/words-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

template <Format kFormat, Rounding kRounding>
class GradualEncoder {
 private:
  using F = hn::Vec<decltype(VectorLanes::kF32)>;
  static constexpr auto kF32 = VectorLanes::kF32;
  static constexpr auto kU32 = VectorLanes::kU32;

  // Ties away from zero: truncated to half quanta, then halved, with halves rounded up.
  static constexpr bool kHalves = kRounding == Rounding::kNearestAway;

  static constexpr int kMantissaBits = kFormat.mantissa_bits;
  static constexpr uint32_t kShift = 23 - kMantissaBits - (kHalves ? 1 : 0);  // d
  static constexpr uint32_t kMinExponent = static_cast<uint32_t>(128 - kFormat.bias);
  static constexpr uint32_t kConstant = (0u - ((kMinExponent + kShift) << kMantissaBits)) & 0xFFFF;
  static constexpr uint32_t kMantissaOffset = kHalves ? 2 * kConstant : kConstant;  // K
  static_assert(CodeBits(kFormat) == 16 && kFormat.bias < 127 && kMantissaBits >= 7);
  static_assert(kFormat.denormals == Denormals::kGradual && HasInfinity(kFormat));
  static_assert(kMantissaOffset + (4u << kMantissaBits) <= 0x10000);

 public:
  // AVX-512 has the rounding in the instruction; elsewhere the environment must have it.
  static constexpr int kDirection = DLSIM_AVX3                               ? FE_TONEAREST
                                    : kRounding == Rounding::kNearestEven    ? FE_TONEAREST
                                    : kRounding == Rounding::kTowardPositive ? FE_UPWARD
                                    : kRounding == Rounding::kTowardNegative ? FE_DOWNWARD
                                                                             : FE_TOWARDZERO;

  // High word of y for the first power of two past the largest finite value.
  static constexpr uint16_t kLimit =
      static_cast<uint16_t>((kMinExponent + ((1u << kFormat.exponent_bits) - 2) + kShift) << 7);

  // Encodes two vectors. Results are right unless `largest` reaches kLimit afterwards.
  HWY_INLINE Words operator()(V x0, V x1, Words& largest) const {
    const V y0 = RoundedSum(x0), y1 = RoundedSum(x1);
    const Words high = HighWords(y0, y1);
    largest = MaxWords(largest, WithoutSigns(high));
    // The mantissa of y is below 2^16, so that its high words hold sign and exponent only.
    const Words exponent = hn::ShiftLeft<kMantissaBits - 7>(high);
    const Words magnitude = hn::Add(Significand(LowWords(y0, y1)), exponent);
    return InOrder(hn::OrAnd(magnitude, high, SetWords(0x8000)));
  }

 private:
  static HWY_INLINE F Float(V bits) { return hn::BitCast(kF32, bits); }
  static HWY_INLINE F Magic() {
    return Float(hn::Set(kU32, ((127 + kShift) << 23) | kMantissaOffset));
  }
  static HWY_INLINE F MinNormal() { return Float(hn::Set(kU32, kMinExponent << 23)); }

  static HWY_INLINE Words Significand(Words low) {
    return kHalves ? hn::AverageRound(low, hn::Zero(kU16)) : low;
  }

  // Directed modes are right because y has the sign of x.
  static HWY_INLINE V RoundedSum(V x) {
#if DLSIM_AVX3
    constexpr int kMode = kRounding == Rounding::kNearestEven      ? _MM_FROUND_TO_NEAREST_INT
                          : kRounding == Rounding::kTowardPositive ? _MM_FROUND_TO_POS_INF
                          : kRounding == Rounding::kTowardNegative ? _MM_FROUND_TO_NEG_INF
                                                                   : _MM_FROUND_TO_ZERO;
    constexpr int kLargerMagnitudeWithFirstSign = 0b0011;
    const F exponent = Float(hn::And(x, hn::Set(kU32, 0xFF800000)));
    const auto power =
        _mm512_range_ps(exponent.raw, MinNormal().raw, kLargerMagnitudeWithFirstSign);
    return hn::BitCast(kU32, F{_mm512_fmadd_round_ps(power, Magic().raw, Float(x).raw,
                                                     kMode | _MM_FROUND_NO_EXC)});
#else
    const F exponent = Float(hn::And(x, hn::Set(kU32, codec::kInfinityBits)));
    const V power = hn::BitCast(kU32, hn::Max(exponent, MinNormal()));
    const V with_sign = hn::OrAnd(power, x, hn::Set(kU32, codec::kSignBit));
    // The product is exact, so that it does not matter whether the sum is fused.
    return hn::BitCast(kU32, hn::MulAdd(Float(with_sign), Magic(), Float(x)));
#endif
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR

#endif  // include guard per target
