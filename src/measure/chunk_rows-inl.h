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
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "src/codec/encode_loop-inl.h"
#include "src/measure/measure_element.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#undef DLSIM_HAS_CHUNK_ROWS
#if HWY_TARGET != HWY_SCALAR
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
  static HWY_INLINE void Store(F values, float* to) { hn::StoreU(values, kF32, to); }
  static HWY_INLINE Sum Lower(const float* from) {
    return hn::PromoteTo(kF64, hn::LoadU(kHalf, from));
  }
  static HWY_INLINE Sum Upper(const float* from) { return Lower(from + kLanes / 2); }

  // Of magnitudes, which are the same as signed integers; smaller targets compare only these.
  static HWY_INLINE M Lt(V a, V b) {
    return hn::RebindMask(kU32, hn::Lt(hn::BitCast(kI32, a), hn::BitCast(kI32, b)));
  }
  static HWY_INLINE V Max(V a, V b) {
    return hn::BitCast(kU32, hn::Max(hn::BitCast(kI32, a), hn::BitCast(kI32, b)));
  }
  static HWY_INLINE V CountIn(M mask, V counts) {
#if HWY_TARGET <= HWY_AVX3
    return hn::IfThenElse(mask, hn::Add(counts, hn::Set(kU32, 1)), counts);
#else
    return hn::Sub(counts, hn::VecFromMask(kU32, mask));
#endif
  }
  static HWY_INLINE size_t Total(V counts) { return hn::GetLane(hn::SumOfLanes(kU32, counts)); }
};

// Rounds magnitudes below `limit`, a power of two, as float32 rounds scaled values that are
// subnormal: x + limit lies in a binade whose unit is theirs.
HWY_INLINE RowVectors::V RoundProduct(RowVectors::V magnitude, RowVectors::V limit) {
  using X = RowVectors;
  const X::F c = X::Float(limit);
  const X::V rounded = X::Bits(hn::Sub(hn::Add(X::Float(magnitude), c), c));
  return hn::IfThenElse(X::Lt(magnitude, limit), rounded, magnitude);
}

// The float64 sums of the squares of a vector's lanes. Values come from memory: x86 widens them
// there at no cost, but those in a register only after moving its upper half.
struct SquareSums {
  using X = RowVectors;
  // Written out, as that of PhiloxHalves is.
  HWY_INLINE SquareSums() : low(hn::Zero(X::kF64)), high(hn::Zero(X::kF64)) {}
  explicit HWY_INLINE SquareSums(const double* sums)
      : low(hn::LoadU(X::kF64, sums)), high(hn::LoadU(X::kF64, sums + X::kLanes / 2)) {}

  X::Sum low, high;

  // The squares of float32 are exact: fused and separate multiply-add agree.
  HWY_INLINE void Add(const float* values) {
    const X::Sum lower = X::Lower(values), upper = X::Upper(values);
    low = hn::MulAdd(lower, lower, low);
    high = hn::MulAdd(upper, upper, high);
  }
  // Of errors, whose squares are rounded and must not be fused with the sum.
  HWY_INLINE void AddErrors(const float* outputs, X::Sum inverse, const float* inputs) {
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

// Calls add(column, index) for the columns of whole rows: enough at once that none waits for its
// sum, and not more than the registers hold.
template <class Add>
HWY_INLINE void AddColumns(size_t count, SumLanes& sums, const Add& add) {
  constexpr size_t kLanes = RowVectors::kLanes;
  constexpr size_t kColumns = HWY_MIN(size_t{4}, kSumLanes / kLanes);
  for (size_t lane = 0; lane < kSumLanes; lane += kColumns * kLanes) {
    double* const to = sums.data() + lane;
    SquareSums columns[kColumns];
    for (size_t c = 0; c < kColumns; ++c) columns[c] = SquareSums(to + c * kLanes);
    for (size_t i = lane; i < count; i += kSumLanes) {
      for (size_t c = 0; c < kColumns; ++c) add(columns[c], i + c * kLanes);
    }
    for (size_t c = 0; c < kColumns; ++c) columns[c].Store(to + c * kLanes);
  }
}

// Some rows of a chunk, in memory, whose squares are to be summed.
struct Strip {
  static constexpr size_t kElements = 32 * kSumLanes;
  using Values = std::array<float, kElements>;

  alignas(64) Values inputs;
  alignas(64) Values outputs;
  alignas(64) Values unscaled;  // outputs
  alignas(64) Values errors;
  alignas(64) Values underflows;  // inputs

  // Each adds the first `count` of some values to its sums.
  static HWY_INLINE void AddSquares(const Values& values, size_t count, SumLanes& sums) {
    AddColumns(count, sums,
               [&](SquareSums& column, size_t i) HWY_ATTR { column.Add(values.data() + i); });
  }
  HWY_INLINE void AddErrors(RowVectors::Sum inverse, size_t count, SumLanes& sums) const {
    AddColumns(count, sums, [&](SquareSums& column, size_t i) HWY_ATTR {
      column.AddErrors(outputs.data() + i, inverse, inputs.data() + i);
    });
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

  // Calls add(pointer) with the place of `lane` in each row, and fetches those to come.
  template <class Add>
  HWY_INLINE void ForEach(size_t lane, const Add& add) const {
    for (size_t i = lane; i < end_; i += kSumLanes) {
      hwy::Prefetch(values_ + i + kPrefetchDistance);
      add(values_ + i);
    }
    if (padding_ > 0) add(last_.data() + lane);
  }

  // Calls visit(pointer, index of the first value, how many) for strips of rows, in order.
  template <class Visit>
  HWY_INLINE void ForEachStrip(const Visit& visit) const {
    for (size_t i = 0; i < end_; i += Strip::kElements) {
      visit(values_ + i, i, HWY_MIN(end_ - i, Strip::kElements));
    }
    if (padding_ > 0) visit(last_.data(), end_, kSumLanes);
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
