// SPDX-License-Identifier: Apache-2.0
// Measures chunks whose inputs and results are all finite, rounded to nearest even, at any scale:
// no branch in the loop, and sums in registers; re-included per SIMD target.
#if defined(DLSIM_MEASURE_PLAIN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_MEASURE_PLAIN_INL_H_
#undef DLSIM_MEASURE_PLAIN_INL_H_
#else
#define DLSIM_MEASURE_PLAIN_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "hwy/cache_control.h"
#include "src/codec/codec-inl.h"
#include "src/codec/encode_loop-inl.h"
#include "src/measure/measure_element.h"
#include "src/measure/measure_plain.h"
#include "src/measure/sum_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

// Counts over all columns; largest magnitude per lane.
struct PlainCounts {
  SumVectors::V absmax;
  size_t zeros, zero_outputs, small_outputs;
};

inline void FinishCounts(const PlainCounts& counts, TensorStats& stats) {
  stats.zeros = counts.zeros;
  stats.underflow = counts.zero_outputs - counts.zeros;
  stats.subnormal = counts.small_outputs - counts.zero_outputs;
  stats.absmax = std::bit_cast<float>(SumVectors::MaxOfLanes(counts.absmax));
}

// The sums of the vectors at the same place of all rows.
struct PlainColumn {
  // Written out, as that of PhiloxHalves is.
  HWY_INLINE PlainColumn()
      : inputs(SumVectors::NoSum()),
        errors(SumVectors::NoSum()),
        underflows(SumVectors::NoSum()),
        quantized(SumVectors::NoSum()) {}

  SumVectors::Sum inputs, errors, underflows, quantized;
};

HWY_INLINE void FinishColumn(const PlainColumn& column, size_t lane, ChunkSums& sums) {
  hn::StoreU(column.inputs, SumVectors::kF64, &sums.inputs[lane]);
  hn::StoreU(column.errors, SumVectors::kF64, &sums.errors[lane]);
  hn::StoreU(column.underflows, SumVectors::kF64, &sums.underflows[lane]);
  hn::StoreU(column.quantized, SumVectors::kF64, &sums.quantized[lane]);
}

// Measures one vector. Flushing is compiled in where it is needed.
template <bool kFlushes>
class PlainVector {
 public:
  using S = SumVectors;
  using V = S::V;

  explicit PlainVector(const PlainSpec& plain)
      : min_normal_(S::Set(plain.min_normal_bits)),
        dropped_(S::Set(plain.dropped_bits << 23)),
        scale_(S::Set(std::bit_cast<uint32_t>(plain.scale))),
        inverse_scale_(S::Set(std::bit_cast<uint32_t>(plain.inverse_scale))),
        exact_inverse_(hn::Set(S::kF64, plain.exact_inverse)) {}

  HWY_INLINE void Add(const float* values, PlainCounts& counts, PlainColumn& sums) const {
    const V none = hn::Zero(S::kU32);
    const V input = S::LoadMagnitudes(values);
    V output = Round(S::MulFloat(input, scale_));
    const S::M small = S::Lt(output, min_normal_);
    if constexpr (kFlushes) output = hn::IfThenZeroElse(small, output);
    const S::M zero = hn::Eq(output, none);
    counts.absmax = S::Max(counts.absmax, input);
    counts.zeros += S::CountTrue(hn::Eq(input, none));
    counts.zero_outputs += S::CountTrue(zero);
    counts.small_outputs += S::CountTrue(small);
    const S::Sum wide = S::Widen(input);
    sums.inputs = S::AddSquare(wide, sums.inputs);
    sums.underflows = S::AddSquareWhere(zero, wide, sums.underflows);
    const S::Sum exact = hn::Mul(S::Widen(output), exact_inverse_);
    sums.errors = S::AddErrorSquare(hn::Sub(exact, wide), sums.errors);
    sums.quantized = S::AddSquare(S::Widen(S::MulFloat(output, inverse_scale_)), sums.quantized);
  }

 private:
  // As ExactRows::Round.
  HWY_INLINE V Round(V magnitude) const {
    const V exponent = hn::And(magnitude, S::Set(codec::kInfinityBits));
    const V c = hn::Add(S::Max(exponent, min_normal_), dropped_);
    return S::SubFloat(S::AddFloat(magnitude, c), c);
  }

  V min_normal_, dropped_, scale_, inverse_scale_;
  S::Sum exact_inverse_;
};

// Measures whole rows; returns whether all inputs and results are finite.
template <bool kFlushes>
bool MeasurePlainRows(const PlainSpec& plain, const float* HWY_RESTRICT values, size_t count,
                      TensorStats& stats, ChunkSums& sums) {
  constexpr size_t kLanes = SumVectors::kLanes;
  // Columns whose sums fit the registers at once.
  constexpr size_t kColumns = HWY_TARGET <= HWY_AVX3 ? 4 : 1;
  static_assert(kSumLanes % (kColumns * kLanes) == 0);
  const PlainVector<kFlushes> vector(plain);
  PlainCounts counts = {SumVectors::Set(0), 0, 0, 0};
  for (size_t lane = 0; lane < kSumLanes; lane += kColumns * kLanes) {
    PlainColumn columns[kColumns];
    for (size_t i = lane; i < count; i += kSumLanes) {
      hwy::Prefetch(values + i + kPrefetchDistance);
      hwy::Prefetch(values + i + kPrefetchDistance + 16);
      for (size_t c = 0; c < kColumns; ++c) {
        vector.Add(values + i + c * kLanes, counts, columns[c]);
      }
    }
    for (size_t c = 0; c < kColumns; ++c) FinishColumn(columns[c], lane + c * kLanes, sums);
  }
  FinishCounts(counts, stats);
  const uint32_t absmax = std::bit_cast<uint32_t>(stats.absmax);
  const uint32_t largest = std::bit_cast<uint32_t>(stats.absmax * plain.scale);
  return absmax < codec::kInfinityBits && largest <= plain.max_bits;
}

// Measures a chunk; returns false where some input or result is not finite.
inline bool MeasurePlain(const CodecSpec& spec, const PlainSpec& plain, const Measurement& question,
                         const float* values, size_t count, TensorStats& stats) {
  const size_t end = count - count % kSumLanes;
  ChunkSums sums;
  const auto rows = plain.flushes ? MeasurePlainRows<true> : MeasurePlainRows<false>;
  if (!rows(plain, values, end, stats, sums)) return false;
  for (size_t i = end; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    const uint32_t scaled = std::bit_cast<uint32_t>(values[i] * question.scale);
    MeasureElement(spec, MakeUnscaling(question.scale), bits, scaled,
                   EncodeWith<Rounding::kNearestEven>(spec, scaled, 0), stats, sums.Lane(i));
  }
  stats.elements = count;
  AddSums(sums, stats);
  return true;
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
