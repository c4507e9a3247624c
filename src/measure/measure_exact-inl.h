// SPDX-License-Identifier: Apache-2.0
// Measures chunks of finite values at scales that are powers of two, rounded to nearest even, with
// finite results: no multiplication, and nothing counted that a chunk's magnitudes rule out;
// re-included per SIMD target.
#if defined(DLSIM_MEASURE_EXACT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_MEASURE_EXACT_INL_H_
#undef DLSIM_MEASURE_EXACT_INL_H_
#else
#define DLSIM_MEASURE_EXACT_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "src/codec/encode_loop-inl.h"
#include "src/measure/measure_chunk.h"
#include "src/measure/measure_element.h"
#include "src/measure/measure_plain.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// As MeasureChunkOnTarget.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_SSSE3

// Whole vectors of float32, whose halves widen to float64.
struct ExactVectors {
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

// The float64 sums of the squares of a vector's lanes. The squares are exact: fused and separate
// multiply-add agree.
struct SquareSums {
  using X = ExactVectors;
  // Written out, as that of PhiloxHalves is.
  HWY_INLINE SquareSums() : low(hn::Zero(X::kF64)), high(hn::Zero(X::kF64)) {}

  X::Sum low, high;

  HWY_INLINE void Add(X::F values) {
    const X::Sum lower = hn::PromoteTo(X::kF64, hn::LowerHalf(values));
    const X::Sum upper = hn::PromoteTo(X::kF64, hn::UpperHalf(X::kHalf, values));
    low = hn::MulAdd(lower, lower, low);
    high = hn::MulAdd(upper, upper, high);
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
    for (size_t i = lane; i < end_; i += kSumLanes) add(values_ + i);
    if (padding_ > 0) add(last_.data() + lane);
  }

 private:
  const float* values_;
  size_t end_, padding_;
  std::array<float, kSumLanes> last_ = {};
};

inline ChunkInputs MeasureInputsOf(const float* values, size_t count) {
  using X = ExactVectors;
  const ChunkRows rows(values, count);
  const X::V one = hn::Set(X::kU32, 1);
  X::V largest = hn::Zero(X::kU32), zeros = largest;
  X::V smallest_less_one = hn::Set(X::kU32, ~uint32_t{0});  // a zero wraps around to this
  alignas(64) SumLanes sums{};
  for (size_t lane = 0; lane < kSumLanes; lane += X::kLanes) {
    SquareSums squares;
    rows.ForEach(lane, [&](const float* at) HWY_ATTR {
      hwy::Prefetch(at + kPrefetchDistance);
      const X::V bits = X::Load(at);
      largest = X::Max(largest, bits);
      smallest_less_one = hn::Min(smallest_less_one, hn::Sub(bits, one));
      zeros = X::CountIn(hn::Eq(bits, hn::Zero(X::kU32)), zeros);
      squares.Add(hn::BitCast(X::kF32, bits));
    });
    squares.Store(&sums[lane]);
  }
  ChunkInputs inputs;
  const uint32_t absmax = hn::GetLane(hn::MaxOfLanes(X::kU32, largest));
  inputs.finite = absmax < codec::kInfinityBits;
  inputs.absmax = std::bit_cast<float>(absmax);
  inputs.smallest_less_one = hn::GetLane(hn::MinOfLanes(X::kU32, smallest_less_one));
  inputs.zeros = X::Total(zeros) - rows.padding();
  inputs.sum_of_squares = AddLanes(sums);
  return inputs;
}

// Measures the rows of a chunk. Unless kSmall no result is subnormal, or zero if its input is not.
template <bool kSmall, bool kFlushes>
class ExactRows {
 public:
  using X = ExactVectors;
  using V = X::V;

  explicit ExactRows(const PlainSpec& plain)
      : min_normal_(hn::Set(X::kU32, plain.min_normal_bits)),
        dropped_(hn::Set(X::kU32, plain.dropped_bits << 23)) {}

  // Returns how many results are zero, and how many below the smallest normal one.
  struct Small {
    size_t zeros = 0, all = 0;
  };
  Small Measure(const ChunkRows& rows, ChunkSums& sums) const {
    Counts counts = {hn::Zero(X::kU32), hn::Zero(X::kU32)};
    for (size_t lane = 0; lane < kSumLanes; lane += kColumns * X::kLanes) {
      Column columns[kColumns];
      rows.ForEach(lane, [&](const float* at) HWY_ATTR {
        for (size_t c = 0; c < kColumns; ++c) Add(at + c * X::kLanes, counts, columns[c]);
      });
      for (size_t c = 0; c < kColumns; ++c) Store(columns[c], lane + c * X::kLanes, sums);
    }
    if constexpr (!kSmall) return {};
    return {X::Total(counts.zeros), X::Total(counts.small)};
  }

 private:
  // Columns whose sums fit the registers at once.
  static constexpr size_t kColumns = (HWY_TARGET > HWY_AVX3) && kSmall ? 1 : 2;
  static_assert(kSumLanes % (kColumns * X::kLanes) == 0);

  struct Counts {
    V zeros, small;
  };
  struct Column {
    HWY_INLINE Column() {}
    SquareSums errors, underflows, quantized;
  };

  HWY_INLINE void Add(const float* at, Counts& counts, Column& column) const {
    const V input = X::Load(at);
    V output = Round(input);
    if constexpr (kSmall) {
      const X::M small = X::Lt(output, min_normal_);
      if constexpr (kFlushes) output = hn::IfThenZeroElse(small, output);
      const X::M zero = hn::Eq(output, hn::Zero(X::kU32));
      counts.small = X::CountIn(small, counts.small);
      counts.zeros = X::CountIn(zero, counts.zeros);
      column.underflows.Add(hn::BitCast(X::kF32, hn::IfThenElseZero(zero, input)));
    }
    // Exact: the error is a multiple of the input's last bit, and not above it in size.
    column.errors.Add(hn::Sub(hn::BitCast(X::kF32, output), hn::BitCast(X::kF32, input)));
    column.quantized.Add(hn::BitCast(X::kF32, output));
  }

  // Rounds to nearest even by one addition: x + C - C with C = 2^dropped * max(2^exponent of x,
  // min_normal). x + C lies in [C, 2C), whose unit is the last bit that the result keeps, and C is
  // an even multiple of it: ties go to even. Holds while 2C is finite.
  HWY_INLINE V Round(V magnitude) const {
    V exponent = hn::And(magnitude, hn::Set(X::kU32, codec::kInfinityBits));
    if constexpr (kSmall) exponent = X::Max(exponent, min_normal_);
    const X::F c = hn::BitCast(X::kF32, hn::Add(exponent, dropped_));
    return hn::BitCast(X::kU32, hn::Sub(hn::Add(hn::BitCast(X::kF32, magnitude), c), c));
  }

  static HWY_INLINE void Store(const Column& column, size_t lane, ChunkSums& sums) {
    column.errors.Store(&sums.errors[lane]);
    column.quantized.Store(&sums.quantized[lane]);
    if constexpr (kSmall) column.underflows.Store(&sums.underflows[lane]);
  }

  V min_normal_, dropped_;
};

template <bool kSmall, bool kFlushes>
TensorStats MeasureExactWith(const PlainSpec& plain, const float* values, size_t count,
                             const ChunkInputs& inputs) {
  const ChunkRows rows(values, count);
  ChunkSums sums;
  const auto small = ExactRows<kSmall, kFlushes>(plain).Measure(rows, sums);
  TensorStats stats;
  AddSums(sums, stats);
  if constexpr (kSmall) {
    stats.underflow = small.zeros - inputs.zeros - rows.padding();
    stats.subnormal = small.all - small.zeros;
  }
  stats.elements = count;
  stats.zeros = inputs.zeros;
  stats.absmax = inputs.absmax;
  stats.sum_of_squares = inputs.sum_of_squares;
  return stats;
}

// Measures a chunk whose inputs are finite and at most plain.max_bits; a spec without
// multiplication.
inline TensorStats MeasureExact(const PlainSpec& plain, const float* values, size_t count,
                                const ChunkInputs& inputs) {
  if (inputs.smallest_less_one >= plain.min_normal_bits - 1) {
    return MeasureExactWith<false, false>(plain, values, count, inputs);
  }
  return plain.flushes ? MeasureExactWith<true, true>(plain, values, count, inputs)
                       : MeasureExactWith<true, false>(plain, values, count, inputs);
}

#else

// No kernel asks.
inline ChunkInputs MeasureInputsOf(const float* /*values*/, size_t /*count*/) { return {}; }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
