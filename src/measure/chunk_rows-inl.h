// SPDX-License-Identifier: Apache-2.0
// A chunk as rows of whole vectors, and the float64 sums of its columns; re-included per SIMD
// target.
#if defined(DLSIM_CHUNK_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_CHUNK_ROWS_INL_H_
#undef DLSIM_CHUNK_ROWS_INL_H_
#else
#define DLSIM_CHUNK_ROWS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "dlsim/codec.h"
#include "dlsim/measure.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#undef DLSIM_HAS_CHUNK_ROWS
// With SSSE3, whose 64-bit lanes are emulated, the lane-generic path is the faster one.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_SSSE3
#define DLSIM_HAS_CHUNK_ROWS 1
#else
#define DLSIM_HAS_CHUNK_ROWS 0
#endif

#if DLSIM_HAS_CHUNK_ROWS

// Whole vectors of float32, whose halves widen to float64.
struct RowVectors {
  using F64 = hn::CappedTag<double, 8>;
  using F32 = hn::Repartition<float, F64>;
  using U32 = hn::Repartition<uint32_t, F64>;
  using I32 = hn::Repartition<int32_t, F64>;
  using Sum = hn::Vec<F64>;
  using V = hn::Vec<U32>;
  using F = hn::Vec<F32>;
  using M = hn::Mask<U32>;
  static constexpr F64 kF64{};
  static constexpr F32 kF32{};
  static constexpr hn::Half<F32> kHalf{};
  static constexpr U32 kU32{};
  static constexpr I32 kI32{};
  static constexpr size_t kLanes = hn::MaxLanes(F32());
  static_assert(kSumLanes % kLanes == 0);

  static HWY_INLINE V Load(const float* from) {
    return hn::And(hn::BitCast(kU32, hn::LoadU(kF32, from)), hn::Set(kU32, ~codec::kSignBit));
  }
  static HWY_INLINE F Float(V bits) { return hn::BitCast(kF32, bits); }
  static HWY_INLINE V Bits(F values) { return hn::BitCast(kU32, values); }
  static HWY_INLINE Sum Lower(F values) { return hn::PromoteTo(kF64, hn::LowerHalf(values)); }
  static HWY_INLINE Sum Upper(F values) {
    return hn::PromoteTo(kF64, hn::UpperHalf(kHalf, values));
  }

  // Of magnitudes, which are the same as signed integers; smaller targets compare only these.
  static HWY_INLINE M Lt(V a, V b) {
    return hn::RebindMask(kU32, hn::Lt(hn::BitCast(kI32, a), hn::BitCast(kI32, b)));
  }
  static HWY_INLINE V Max(V a, V b) {
    return hn::BitCast(kU32, hn::Max(hn::BitCast(kI32, a), hn::BitCast(kI32, b)));
  }
  static HWY_INLINE V CountIn(M mask, V counts) {
    return hn::Sub(counts, hn::VecFromMask(kU32, mask));
  }
  static HWY_INLINE size_t Total(V counts) { return hn::GetLane(hn::SumOfLanes(kU32, counts)); }
};

// The float64 sums of the squares of a vector's lanes.
struct SquareSums {
  using X = RowVectors;
  // Written out, as that of PhiloxHalves is.
  HWY_INLINE SquareSums() : low(hn::Zero(X::kF64)), high(hn::Zero(X::kF64)) {}

  X::Sum low, high;

  // The squares of float32 are exact: fused and separate multiply-add agree.
  HWY_INLINE void Add(X::F values) {
    const X::Sum lower = X::Lower(values), upper = X::Upper(values);
    low = hn::MulAdd(lower, lower, low);
    high = hn::MulAdd(upper, upper, high);
  }
  // Of errors, whose squares are rounded and must not be fused with the sum.
  HWY_INLINE void AddErrors(X::F outputs, X::Sum inverse, X::F inputs) {
    const X::Sum lower = hn::Sub(hn::Mul(X::Lower(outputs), inverse), X::Lower(inputs));
    const X::Sum upper = hn::Sub(hn::Mul(X::Upper(outputs), inverse), X::Upper(inputs));
    low = hn::Add(low, hn::Mul(lower, lower));
    high = hn::Add(high, hn::Mul(upper, upper));
  }
  HWY_INLINE void Store(double* sums) const {
    hn::StoreU(low, X::kF64, sums);
    hn::StoreU(high, X::kF64, sums + X::kLanes / 2);
  }
};

// A chunk in rows of kSumLanes values, the last of them filled up with zeros: these add nothing to
// a sum.
class ChunkRows {
 public:
  ChunkRows(const float* values, size_t count)
      : values_(values),
        end_(count - count % kSumLanes),
        padding_((kSumLanes - count % kSumLanes) % kSumLanes) {
    if (padding_ > 0) std::copy_n(values + end_, kSumLanes - padding_, last_.begin());
  }

  size_t padding() const { return padding_; }

  // Calls add(pointer) with the place of `lane` in each row.
  template <class Add>
  HWY_INLINE void ForEach(size_t lane, const Add& add) const {
    ForEachPlace(lane, [&](const float* at, size_t) HWY_ATTR { add(at); });
  }

  // Calls add(pointer, index).
  template <class Add>
  HWY_INLINE void ForEachPlace(size_t lane, const Add& add) const {
    for (size_t i = lane; i < end_; i += kSumLanes) add(values_ + i, i);
    if (padding_ > 0) add(last_.data() + lane, end_ + lane);
  }

  // Calls visit(pointer, index) for every vector, in order.
  template <class Visit>
  HWY_INLINE void ForEachVector(const Visit& visit) const {
    for (size_t i = 0; i < end_; i += RowVectors::kLanes) visit(values_ + i, i);
    if (padding_ == 0) return;
    for (size_t i = 0; i < kSumLanes; i += RowVectors::kLanes) visit(last_.data() + i, end_ + i);
  }

 private:
  const float* values_;
  size_t end_, padding_;
  std::array<float, kSumLanes> last_ = {};
};

#endif  // DLSIM_HAS_CHUNK_ROWS

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
