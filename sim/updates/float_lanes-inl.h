// SPDX-License-Identifier: Apache-2.0
// The operations over which optimizers are written, on float32 and float64 lanes: one of them, or
// a Highway vector; re-included per SIMD target.
#if defined(DLSIM_FLOAT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_FLOAT_LANES_INL_H_
#undef DLSIM_FLOAT_LANES_INL_H_
#else
#define DLSIM_FLOAT_LANES_INL_H_
#endif

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "src/codec/codec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim::sim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace lanewise = dlsim::HWY_NAMESPACE::lanewise;

inline constexpr size_t kMostLanes = 16;

// One lane: the definition.
struct ScalarFloats {
  using F = float;
  using M = bool;
  using Bits = ScalarLanes;

  static HWY_INLINE size_t Count() { return 1; }
  HWY_INLINE F Set(float value) const { return value; }
  HWY_INLINE F Load(const float* from) const { return *from; }
  HWY_INLINE void Store(F value, float* to) const { *to = value; }
  HWY_INLINE F Neg(F a) const { return -a; }
  HWY_INLINE F Add(F a, F b) const { return a + b; }
  HWY_INLINE F Sub(F a, F b) const { return a - b; }
  HWY_INLINE F Mul(F a, F b) const { return a * b; }
  HWY_INLINE F Div(F a, F b) const { return a / b; }
  HWY_INLINE F Sqrt(F a) const { return std::sqrt(a); }
  HWY_INLINE F Fma(F a, F b, F c) const { return std::fma(a, b, c); }  // a * b + c
  HWY_INLINE M Lt(F a, F b) const { return a < b; }
  HWY_INLINE M IsNan(F a) const { return std::isnan(a); }
  HWY_INLINE M Either(M a, M b) const { return a || b; }
  HWY_INLINE bool AllFalse(M mask) const { return !mask; }
  HWY_INLINE F Select(M mask, F yes, F no) const { return mask ? yes : no; }
  HWY_INLINE uint32_t ToBits(F a) const { return std::bit_cast<uint32_t>(a); }
  HWY_INLINE F FromBits(uint32_t bits) const { return std::bit_cast<float>(bits); }
};

struct ScalarDoubles {
  using D = double;
  using M = bool;

  static HWY_INLINE size_t Count() { return 1; }
  HWY_INLINE D Set(double value) const { return value; }
  HWY_INLINE D Load(const float* from) const { return *from; }
  HWY_INLINE D Add(D a, D b) const { return a + b; }
  HWY_INLINE D Sub(D a, D b) const { return a - b; }
  HWY_INLINE D Mul(D a, D b) const { return a * b; }
  HWY_INLINE D Abs(D a) const { return std::fabs(a); }
  HWY_INLINE M Lt(D a, D b) const { return a < b; }
  HWY_INLINE M Le(D a, D b) const { return a <= b; }
  HWY_INLINE M Eq(D a, D b) const { return a == b; }
  HWY_INLINE M Both(M a, M b) const { return a && b; }
  HWY_INLINE M AndNot(M not_a, M b) const { return !not_a && b; }
  HWY_INLINE size_t CountTrue(M mask) const { return mask; }
};

#if HWY_TARGET == HWY_SCALAR

using VectorFloats = ScalarFloats;
using VectorDoubles = ScalarDoubles;

#else

struct VectorFloats {
  using Bits = dlsim::HWY_NAMESPACE::VectorLanes;
  static constexpr auto kF32 = Bits::kF32;
  using F = hn::Vec<hn::RebindToFloat<dlsim::HWY_NAMESPACE::U32Tag> >;
  using M = hn::Mask<hn::RebindToFloat<dlsim::HWY_NAMESPACE::U32Tag> >;

  static HWY_INLINE size_t Count() { return hn::Lanes(kF32); }
  HWY_INLINE F Set(float value) const { return hn::Set(kF32, value); }
  HWY_INLINE F Load(const float* from) const { return hn::LoadU(kF32, from); }
  HWY_INLINE void Store(F value, float* to) const { hn::StoreU(value, kF32, to); }
  HWY_INLINE F Neg(F a) const { return hn::Neg(a); }
  HWY_INLINE F Add(F a, F b) const { return hn::Add(a, b); }
  HWY_INLINE F Sub(F a, F b) const { return hn::Sub(a, b); }
  HWY_INLINE F Mul(F a, F b) const { return hn::Mul(a, b); }
  HWY_INLINE F Div(F a, F b) const { return hn::Div(a, b); }
  HWY_INLINE F Sqrt(F a) const { return hn::Sqrt(a); }
  HWY_INLINE F Fma(F a, F b, F c) const {
#if HWY_NATIVE_FMA
    return hn::MulAdd(a, b, c);
#else
    alignas(64) float x[kMostLanes], y[kMostLanes], z[kMostLanes];
    Store(a, x);
    Store(b, y);
    Store(c, z);
    for (size_t i = 0; i < Count(); ++i) z[i] = std::fma(x[i], y[i], z[i]);
    return Load(z);
#endif
  }
  HWY_INLINE M Lt(F a, F b) const { return hn::Lt(a, b); }
  HWY_INLINE M IsNan(F a) const { return hn::IsNaN(a); }
  HWY_INLINE M Either(M a, M b) const { return hn::Or(a, b); }
  HWY_INLINE bool AllFalse(Bits::M mask) const { return Bits().AllFalse(mask); }
  HWY_INLINE F Select(M mask, F yes, F no) const { return hn::IfThenElse(mask, yes, no); }
  HWY_INLINE Bits::V ToBits(F a) const { return hn::BitCast(Bits::kU32, a); }
  HWY_INLINE F FromBits(Bits::V bits) const { return hn::BitCast(kF32, bits); }
};

struct VectorDoubles {
  static constexpr hn::CappedTag<double, kMostLanes> kF64{};
  static constexpr hn::Rebind<float, hn::CappedTag<double, kMostLanes> > kNarrow{};
  using D = hn::Vec<hn::CappedTag<double, kMostLanes> >;
  using M = hn::Mask<hn::CappedTag<double, kMostLanes> >;

  static HWY_INLINE size_t Count() { return hn::Lanes(kF64); }
  HWY_INLINE D Set(double value) const { return hn::Set(kF64, value); }
  HWY_INLINE D Load(const float* from) const {
    return hn::PromoteTo(kF64, hn::LoadU(kNarrow, from));
  }
  HWY_INLINE D Add(D a, D b) const { return hn::Add(a, b); }
  HWY_INLINE D Sub(D a, D b) const { return hn::Sub(a, b); }
  HWY_INLINE D Mul(D a, D b) const { return hn::Mul(a, b); }
  HWY_INLINE D Abs(D a) const { return hn::Abs(a); }
  HWY_INLINE M Lt(D a, D b) const { return hn::Lt(a, b); }
  HWY_INLINE M Le(D a, D b) const { return hn::Le(a, b); }
  HWY_INLINE M Eq(D a, D b) const { return hn::Eq(a, b); }
  HWY_INLINE M Both(M a, M b) const { return hn::And(a, b); }
  HWY_INLINE M AndNot(M not_a, M b) const { return hn::AndNot(not_a, b); }
  HWY_INLINE size_t CountTrue(M mask) const { return hn::CountTrue(kF64, mask); }
};

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace dlsim::sim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
