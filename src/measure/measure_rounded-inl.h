// SPDX-License-Identifier: Apache-2.0
// Measures chunks of finite values beside their decoded results: whole vectors without a branch;
// re-included per SIMD target.
#if defined(DLSIM_MEASURE_ROUNDED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_MEASURE_ROUNDED_INL_H_
#undef DLSIM_MEASURE_ROUNDED_INL_H_
#else
#define DLSIM_MEASURE_ROUNDED_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "dlsim/tensor_stats.h"
#include "src/measure/chunk_inputs.h"
#include "src/measure/chunk_rows-inl.h"
#include "src/measure/measure_element.h"
#include "src/measure/measure_rounded.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if DLSIM_HAS_CHUNK_ROWS

// Measures the rows of a chunk.
template <RoundedKernel kKernel>
class RoundedRows {
 public:
  using X = RowVectors;
  using V = X::V;

  // How many results are zero, how many below the smallest normal one, and how many overflow.
  struct Found {
    size_t zeros = 0, small = 0, overflowing = 0;
  };

  explicit RoundedRows(const RoundedSpec& spec)
      : min_normal_(hn::Set(X::kU32, spec.min_normal_bits)),
        max_(hn::Set(X::kU32, spec.max_bits)),
        positive_limit_(hn::Set(X::kU32, spec.positive_limit_bits)),
        negative_limit_(hn::Set(X::kU32, spec.negative_limit_bits)),
        scale_(hn::Set(X::kF32, spec.scale)),
        inverse_scale_(hn::Set(X::kF32, spec.inverse_scale)),
        exact_inverse_(hn::Set(X::kF64, spec.exact_inverse)) {}

  // `results` are filled up with zeros to whole rows.
  Found Measure(const ChunkRows& rows, const float* results, ChunkSums& sums) const {
    Counts counts;
    for (size_t lane = 0; lane < kSumLanes; lane += X::kLanes) {
      Column column;
      rows.ForEachPlace(
          lane, [&](const float* at, size_t i) HWY_ATTR { Add(at, results + i, counts, column); });
      column.errors.Store(&sums.errors[lane]);
      column.quantized.Store(&sums.quantized[lane]);
      if constexpr (kKernel.small) column.underflows.Store(&sums.underflows[lane]);
    }
    return {X::Total(counts.zeros), X::Total(counts.small), X::Total(counts.overflowing)};
  }

 private:
  static constexpr RoundedResults kResults = kKernel.results;

  // Both constructors are written out, as that of PhiloxHalves is.
  struct Counts {
    HWY_INLINE Counts()
        : zeros(hn::Zero(X::kU32)), small(hn::Zero(X::kU32)), overflowing(hn::Zero(X::kU32)) {}
    V zeros, small, overflowing;
  };
  struct Column {
    HWY_INLINE Column() {}
    SquareSums errors, underflows, quantized;
  };

  HWY_INLINE void Add(const float* at, const float* result, Counts& counts, Column& column) const {
    const V input = X::Load(at), output = X::Load(result);
    if constexpr (kKernel.small) {
      const X::M zero = hn::Eq(output, hn::Zero(X::kU32));
      counts.zeros = X::CountIn(zero, counts.zeros);
      counts.small = X::CountIn(X::Lt(output, min_normal_), counts.small);
      column.underflows.Add(X::Float(hn::IfThenElseZero(zero, input)));
    }
    if constexpr (kResults == RoundedResults::kExact) {
      AddExact(X::Float(input), X::Float(output), column);
      return;
    }
    V counted_input = input, counted_output = output;
    if constexpr (kResults == RoundedResults::kInfinite) {
      const X::M infinite = X::Lt(max_, output);
      counts.overflowing = X::CountIn(infinite, counts.overflowing);
      counted_input = hn::IfThenZeroElse(infinite, input);  // what is not finite has no error
      counted_output = hn::IfThenZeroElse(infinite, output);
    }
    if constexpr (kResults == RoundedResults::kSaturating) {
      counts.overflowing = X::CountIn(Saturates(at), counts.overflowing);
    }
    column.errors.AddErrors(X::Float(counted_output), exact_inverse_, X::Float(counted_input));
    column.quantized.Add(hn::Mul(X::Float(output), inverse_scale_));
  }

  // The error of a normal result is below the unit of the input's binade in the format, and a
  // multiple of the input's last bit: float32 holds it.
  HWY_INLINE void AddExact(X::F input, X::F output, Column& column) const {
    const X::F unscaled = hn::Mul(output, inverse_scale_);
    column.quantized.Add(unscaled);
    if constexpr (kKernel.small) {
      column.errors.AddErrors(output, exact_inverse_, input);
    } else {
      column.errors.Add(hn::Sub(unscaled, input));
    }
  }

  HWY_INLINE X::M Saturates(const float* at) const {
    const V scaled = X::Bits(hn::Mul(hn::LoadU(X::kF32, at), scale_));
    const X::M negative = X::Lt(scaled, hn::Zero(X::kU32));
    const V magnitude = hn::And(scaled, hn::Set(X::kU32, ~codec::kSignBit));
    return X::Lt(hn::IfThenElse(negative, negative_limit_, positive_limit_), magnitude);
  }

  V min_normal_, max_, positive_limit_, negative_limit_;
  X::F scale_, inverse_scale_;
  X::Sum exact_inverse_;
};

template <RoundedKernel kKernel>
TensorStats MeasureRoundedWith(const RoundedSpec& spec, const float* values, const float* results,
                               size_t count, const ChunkInputs& inputs) {
  const ChunkRows rows(values, count);
  ChunkSums sums;
  const auto found = RoundedRows<kKernel>(spec).Measure(rows, results, sums);
  TensorStats stats = inputs.Stats(count);
  stats.error_sum_of_squares = AddLanes(sums.errors);
  stats.underflow_sum_of_squares = AddLanes(sums.underflows);
  stats.quantized_sum_of_squares = AddLanes(sums.quantized);
  stats.overflow = found.overflowing;
  if (kKernel.results == RoundedResults::kInfinite) stats.nonfinite_outputs = found.overflowing;
  if (kKernel.small) {
    stats.underflow = found.zeros - inputs.zeros - rows.padding();
    stats.subnormal = found.small - found.zeros;
  }
  return stats;
}

using MeasureRoundedFunction = TensorStats (*)(const RoundedSpec&, const float*, const float*,
                                               size_t, const ChunkInputs&);

template <bool kSmall>
MeasureRoundedFunction RoundedFunctionFor(RoundedResults results) {
  using R = RoundedResults;
  switch (results) {
    case R::kExact:
      return MeasureRoundedWith<RoundedKernel{kSmall, R::kExact}>;
    case R::kFinite:
      return MeasureRoundedWith<RoundedKernel{kSmall, R::kFinite}>;
    case R::kInfinite:
      return MeasureRoundedWith<RoundedKernel{kSmall, R::kInfinite}>;
    case R::kSaturating:
      return MeasureRoundedWith<RoundedKernel{kSmall, R::kSaturating}>;
  }
  return nullptr;
}

inline MeasureRoundedFunction FunctionOf(const RoundedKernel& kernel) {
  return kernel.small ? RoundedFunctionFor<true>(kernel.results)
                      : RoundedFunctionFor<false>(kernel.results);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
