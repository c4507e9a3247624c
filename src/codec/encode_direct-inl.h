// SPDX-License-Identifier: Apache-2.0
// Encodes to fp16 with the conversion instruction and to bf16 with 16-bit integers; re-included per
// SIMD target. The interface is that of GradualEncoder.
#if defined(DLSIM_ENCODE_DIRECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_ENCODE_DIRECT_INL_H_
#undef DLSIM_ENCODE_DIRECT_INL_H_
#else
#define DLSIM_ENCODE_DIRECT_INL_H_
#endif

#include <cfenv>
#include <cstdint>

#include "dlsim/codec.h"
#include "src/codec/encode_gradual-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

#if DLSIM_F16C

// vcvtps2ph with the rounding in the instruction: exact on all inputs, whatever the environment.
template <Rounding kRounding>
class Fp16Encoder {
 public:
  static constexpr int kDirection = FE_TONEAREST;
  // Where ties go away from zero, NaN codes are not final.
  static constexpr uint16_t kLimit = 0x7C01;

  HWY_INLINE Words operator()(V x0, V x1, Words& largest) const {
    if constexpr (kRounding == Rounding::kNearestAway) {
      // The last bit turns a tie into more than half and changes no other result but infinity's.
      const V one = hn::Set(VectorLanes::kU32, 1);
      const Words codes = Combine(Convert(hn::Or(x0, one)), Convert(hn::Or(x1, one)));
      largest = MaxWords(largest, WithoutSigns(codes));
      return codes;
    } else {
      return Combine(Convert(x0), Convert(x1));
    }
  }

 private:
  static constexpr int kMode = kRounding == Rounding::kTowardZero       ? _MM_FROUND_TO_ZERO
                               : kRounding == Rounding::kTowardPositive ? _MM_FROUND_TO_POS_INF
                               : kRounding == Rounding::kTowardNegative ? _MM_FROUND_TO_NEG_INF
                                                                        : _MM_FROUND_TO_NEAREST_INT;
#if DLSIM_AVX3
  static HWY_INLINE __m256i Convert(V x) {
    return _mm512_cvtps_ph(_mm512_castsi512_ps(x.raw), kMode | _MM_FROUND_NO_EXC);
  }
  static HWY_INLINE Words Combine(__m256i a, __m256i b) {
    return Words{_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1)};
  }
#else
  static HWY_INLINE __m128i Convert(V x) {
    return _mm256_cvtps_ph(_mm256_castsi256_ps(x.raw), kMode);
  }
  static HWY_INLINE Words Combine(__m128i a, __m128i b) {
    return Words{_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1)};
  }
#endif
};

#else

template <Rounding kRounding>
using Fp16Encoder = GradualEncoder<kFp16, kRounding>;

#endif  // DLSIM_F16C

// bf16 is the upper half of float32, rounded: `high` plus one where `low` carries into it.
template <Rounding kRounding>
class Bf16Encoder {
 public:
  static constexpr int kDirection = FE_TONEAREST;
  // NaN must become quiet; its payload may be in `low` alone.
  static constexpr uint16_t kLimit = 0x7F80;

  HWY_INLINE Words operator()(V x0, V x1, Words& largest) const {
    const Words high = HighWords(x0, x1);
    largest = MaxWords(largest, WithoutSigns(high));
    if constexpr (kRounding == Rounding::kTowardZero) return InOrder(high);
    return InOrder(hn::Add(high, RoundUp(high, LowWords(x0, x1))));
  }

 private:
  // Returns 1 where low + addend + 1 reaches 2^16: bit 15 of the average, rounded up.
  static HWY_INLINE Words Carry(Words low, Words addend) {
    return hn::ShiftRight<15>(hn::AverageRound(low, addend));
  }

  static HWY_INLINE Words RoundUp(Words high, Words low) {
    if constexpr (kRounding == Rounding::kNearestEven) {
      return Carry(low, hn::OrAnd(SetWords(0x7FFE), high, SetWords(1)));
    } else if constexpr (kRounding == Rounding::kNearestAway) {
      return hn::ShiftRight<15>(low);
    } else {
      const Words negative = hn::BitCast(kU16, hn::ShiftRight<15>(hn::BitCast(kI16, high)));
      const Words inexact = Carry(low, SetWords(0xFFFE));
      return kRounding == Rounding::kTowardPositive ? hn::AndNot(negative, inexact)
                                                    : hn::And(negative, inexact);
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR

#endif  // include guard per target
