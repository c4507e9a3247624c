// SPDX-License-Identifier: Apache-2.0
// Vectors for sums in float64: each holds as many 32-bit lanes as a vector has float64 lanes, so
// that values and masks widen without being cut in halves; re-included per SIMD target. Not for the
// scalar target.
#if defined(DLSIM_SUM_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_SUM_LANES_INL_H_
#undef DLSIM_SUM_LANES_INL_H_
#else
#define DLSIM_SUM_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "dlsim/codec.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

struct SumVectors {
  using F64 = hn::CappedTag<double, 8>;
  using F32 = hn::Rebind<float, F64>;
  using U32 = hn::Rebind<uint32_t, F64>;
  using I32 = hn::Rebind<int32_t, F64>;
  using Sum = hn::Vec<F64>;
  using V = hn::Vec<U32>;
  using M = hn::Mask<U32>;
  static constexpr F64 kF64{};
  static constexpr F32 kF32{};
  static constexpr U32 kU32{};
  static constexpr I32 kI32{};
  static constexpr size_t kLanes = hn::MaxLanes(F64());

  static HWY_INLINE V Set(uint32_t value) { return hn::Set(kU32, value); }
  static HWY_INLINE Sum NoSum() { return hn::Zero(kF64); }
  static HWY_INLINE V LoadMagnitudes(const float* from) {
    return hn::And(hn::BitCast(kU32, hn::LoadU(kF32, from)), Set(~codec::kSignBit));
  }

  // Of magnitudes, which are the same as signed integers; smaller targets compare only these.
  static HWY_INLINE M Lt(V a, V b) {
    return hn::RebindMask(kU32, hn::Lt(hn::BitCast(kI32, a), hn::BitCast(kI32, b)));
  }
  static HWY_INLINE V Max(V a, V b) {
    return hn::BitCast(kU32, hn::Max(hn::BitCast(kI32, a), hn::BitCast(kI32, b)));
  }
  static HWY_INLINE size_t CountTrue(M mask) { return hn::CountTrue(kU32, mask); }
  static HWY_INLINE uint32_t MaxOfLanes(V a) { return hn::GetLane(hn::MaxOfLanes(kU32, a)); }

  // Lanes read as float32.
  static HWY_INLINE V MulFloat(V bits, V factor) {
    return hn::BitCast(kU32, hn::Mul(hn::BitCast(kF32, bits), hn::BitCast(kF32, factor)));
  }
  static HWY_INLINE V AddFloat(V a, V b) {
    return hn::BitCast(kU32, hn::Add(hn::BitCast(kF32, a), hn::BitCast(kF32, b)));
  }
  static HWY_INLINE V SubFloat(V a, V b) {
    return hn::BitCast(kU32, hn::Sub(hn::BitCast(kF32, a), hn::BitCast(kF32, b)));
  }
  static HWY_INLINE Sum Widen(V bits) { return hn::PromoteTo(kF64, hn::BitCast(kF32, bits)); }

  // The square of a float32 is exact in float64: fused and separate multiply-add agree.
  static HWY_INLINE Sum AddSquare(Sum value, Sum sum) { return hn::MulAdd(value, value, sum); }

  // The square of an error is rounded, and must not be fused with the sum.
  static HWY_INLINE Sum AddErrorSquare(Sum error, Sum sum) {
    return hn::Add(sum, hn::Mul(error, error));
  }

  // Adds the square of a float32 in the lanes of `mask` only.
  static HWY_INLINE Sum AddSquareWhere(M mask, Sum value, Sum sum) {
#if HWY_TARGET <= HWY_AVX3
    return Sum{_mm512_mask3_fmadd_pd(value.raw, value.raw, sum.raw, mask.raw)};
#else
    return AddSquare(hn::And(WidenMask(mask), value), sum);
#endif
  }

 private:
#if HWY_TARGET > HWY_AVX3
  static HWY_INLINE Sum WidenMask(M mask) {
    const hn::Rebind<int64_t, F64> i64;
    return hn::BitCast(kF64, hn::PromoteTo(i64, hn::BitCast(kI32, hn::VecFromMask(kU32, mask))));
  }
#endif
};

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
