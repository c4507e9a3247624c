// SPDX-License-Identifier: Apache-2.0
// The lane operations of dlsim/lanes.h for Highway vectors, and the memory operations that kernels
// need; re-included per SIMD target.
#if defined(DLSIM_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_LANES_INL_H_
#undef DLSIM_LANES_INL_H_
#else
#define DLSIM_LANES_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "dlsim/lanes.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

// The fallback has one lane and Highway 1.0.3 gets its variable shifts wrong: plain integers.
struct VectorLanes : ScalarLanes {
  static constexpr size_t Count() { return 1; }
  V LoadFloats(const float* from) const { return std::bit_cast<uint32_t>(*from); }
  void StoreFloats(V bits, float* to) const { *to = std::bit_cast<float>(bits); }
  template <class Code>
  V LoadCodes(const Code* from) const {
    return *from;
  }
  template <class Code>
  void StoreCodes(V codes, Code* to) const {
    *to = static_cast<Code>(codes);
  }
  V MulFloat(V bits, float factor) const {
    return std::bit_cast<uint32_t>(std::bit_cast<float>(bits) * factor);
  }
  V MulFloats(V a, V b) const { return MulFloat(a, std::bit_cast<float>(b)); }
  V AddFloat(V a, V b) const {
    return std::bit_cast<uint32_t>(std::bit_cast<float>(a) + std::bit_cast<float>(b));
  }
  void AddSquares(V bits, double* sums) const {
    const double value = std::bit_cast<float>(bits);
    *sums += value * value;
  }
  void AddErrorSquares(V inputs, V outputs, double inverse, double* sums) const {
    const double error =
        double{std::bit_cast<float>(outputs)} * inverse - double{std::bit_cast<float>(inputs)};
    *sums += error * error;
  }
  size_t CountTrue(M mask) const { return mask; }
  bool AllFalse(M mask) const { return !mask; }
  uint32_t MaxOfLanes(V a) const { return a; }
};

#else

// At most 16 lanes, so that a whole number of vectors covers the lanes of a blocked sum.
using U32Tag = hn::CappedTag<uint32_t, 16>;

struct VectorLanes {
  using V = hn::Vec<U32Tag>;
  using M = hn::Mask<U32Tag>;
  static constexpr U32Tag kU32{};
  static constexpr hn::RebindToSigned<U32Tag> kI32{};
  static constexpr hn::RebindToFloat<U32Tag> kF32{};
  static constexpr hn::Rebind<uint16_t, U32Tag> kU16{};
  static constexpr hn::Rebind<uint8_t, U32Tag> kU8{};

  static HWY_INLINE size_t Count() { return hn::Lanes(kU32); }

  HWY_INLINE V Set(uint32_t value) const { return hn::Set(kU32, value); }
  HWY_INLINE V And(V a, V b) const { return hn::And(a, b); }
  HWY_INLINE V Or(V a, V b) const { return hn::Or(a, b); }
  HWY_INLINE V Xor(V a, V b) const { return hn::Xor(a, b); }
  HWY_INLINE V Not(V a) const { return hn::Not(a); }
  HWY_INLINE V Add(V a, V b) const { return hn::Add(a, b); }
  HWY_INLINE V Sub(V a, V b) const { return hn::Sub(a, b); }
  HWY_INLINE V ShlBy(V a, uint32_t count) const {
    return hn::ShiftLeftSame(a, static_cast<int>(count));
  }
  HWY_INLINE V ShrBy(V a, uint32_t count) const {
    return hn::ShiftRightSame(a, static_cast<int>(count));
  }
  HWY_INLINE V Shl(V a, V counts) const { return a << counts; }
  HWY_INLINE V Shr(V a, V counts) const { return a >> counts; }
  HWY_INLINE M Lt(V a, V b) const {
    return hn::RebindMask(kU32, hn::Lt(hn::BitCast(kI32, a), hn::BitCast(kI32, b)));
  }
  HWY_INLINE M LtUnsigned(V a, V b) const { return hn::Lt(a, b); }
  HWY_INLINE M Eq(V a, V b) const { return hn::Eq(a, b); }
  HWY_INLINE M MaskAnd(M a, M b) const { return hn::And(a, b); }
  HWY_INLINE M MaskAndNot(M not_a, M b) const { return hn::AndNot(not_a, b); }
  HWY_INLINE V Select(M mask, V yes, V no) const { return hn::IfThenElse(mask, yes, no); }
  HWY_INLINE V Min(V a, V b) const {
    return hn::BitCast(kU32, hn::Min(hn::BitCast(kI32, a), hn::BitCast(kI32, b)));
  }
  HWY_INLINE V Max(V a, V b) const {
    return hn::BitCast(kU32, hn::Max(hn::BitCast(kI32, a), hn::BitCast(kI32, b)));
  }
  HWY_INLINE V SubFloat(V a, V b) const {
    return hn::BitCast(kU32, hn::Sub(hn::BitCast(kF32, a), hn::BitCast(kF32, b)));
  }

  // Memory: bits of float32 values, and codes of 8, 16 or 32 bits; at any alignment.
  HWY_INLINE V LoadFloats(const float* from) const {
    return hn::BitCast(kU32, hn::LoadU(kF32, from));
  }
  HWY_INLINE void StoreFloats(V bits, float* to) const {
    hn::StoreU(hn::BitCast(kF32, bits), kF32, to);
  }
  HWY_INLINE V LoadCodes(const uint32_t* from) const { return hn::LoadU(kU32, from); }
  HWY_INLINE V LoadCodes(const uint16_t* from) const {
    return hn::PromoteTo(kU32, hn::LoadU(kU16, from));
  }
  HWY_INLINE V LoadCodes(const uint8_t* from) const {
    return hn::PromoteTo(kU32, hn::LoadU(kU8, from));
  }
  HWY_INLINE void StoreCodes(V codes, uint32_t* to) const { hn::StoreU(codes, kU32, to); }
  HWY_INLINE void StoreCodes(V codes, uint16_t* to) const {
    hn::StoreU(hn::TruncateTo(kU16, codes), kU16, to);
  }
  // Codes of 8 bits fit, so that nothing saturates.
  HWY_INLINE void StoreCodes(V codes, uint8_t* to) const {
    hn::StoreU(hn::DemoteTo(kU8, hn::BitCast(kI32, codes)), kU8, to);
  }

  // Arithmetic on lanes read as float32.
  HWY_INLINE V MulFloat(V bits, float factor) const {
    return hn::BitCast(kU32, hn::Mul(hn::BitCast(kF32, bits), hn::Set(kF32, factor)));
  }
  HWY_INLINE V MulFloats(V a, V b) const {
    return hn::BitCast(kU32, hn::Mul(hn::BitCast(kF32, a), hn::BitCast(kF32, b)));
  }
  HWY_INLINE V AddFloat(V a, V b) const {
    return hn::BitCast(kU32, hn::Add(hn::BitCast(kF32, a), hn::BitCast(kF32, b)));
  }

  // Adds the square of each lane to its own float64 sum. The square of a float32 is exact in
  // float64, so that fused and separate multiply-add agree.
  HWY_INLINE void AddSquares(V bits, double* sums) const {
    const hn::Repartition<double, U32Tag> f64;
    const hn::Half<decltype(kF32)> half;
    const auto values = hn::BitCast(kF32, bits);
    const auto low = hn::PromoteTo(f64, hn::LowerHalf(half, values));
    const auto high = hn::PromoteTo(f64, hn::UpperHalf(half, values));
    const size_t n = hn::Lanes(f64);
    hn::StoreU(hn::MulAdd(low, low, hn::LoadU(f64, sums)), f64, sums);
    hn::StoreU(hn::MulAdd(high, high, hn::LoadU(f64, sums + n)), f64, sums + n);
  }

  // Adds to each sum the square of output * inverse - input in float64. The square is rounded, and
  // must not be fused with the sum.
  HWY_INLINE void AddErrorSquares(V inputs, V outputs, double inverse, double* sums) const {
    const hn::Repartition<double, U32Tag> f64;
    const hn::Half<decltype(kF32)> half;
    const auto factor = hn::Set(f64, inverse);
    const auto add = [&](auto input, auto output, double* to) HWY_ATTR {
      const auto error =
          hn::Sub(hn::Mul(hn::PromoteTo(f64, output), factor), hn::PromoteTo(f64, input));
      hn::StoreU(hn::Add(hn::LoadU(f64, to), hn::Mul(error, error)), f64, to);
    };
    const auto in = hn::BitCast(kF32, inputs), out = hn::BitCast(kF32, outputs);
    add(hn::LowerHalf(half, in), hn::LowerHalf(half, out), sums);
    add(hn::UpperHalf(half, in), hn::UpperHalf(half, out), sums + hn::Lanes(f64));
  }

  HWY_INLINE size_t CountTrue(M mask) const { return hn::CountTrue(kU32, mask); }
  HWY_INLINE bool AllFalse(M mask) const { return hn::AllFalse(kU32, mask); }

  // Largest lane as a signed integer.
  HWY_INLINE uint32_t MaxOfLanes(V a) const {
    return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(kI32, hn::BitCast(kI32, a))));
  }
};

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
