// SPDX-License-Identifier: Apache-2.0
// Measures chunks of finite values against their decoded results: whole vectors without a branch;
// re-included per SIMD target.
#if defined(DLSIM_MEASURE_ROUNDED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_MEASURE_ROUNDED_INL_H_
#undef DLSIM_MEASURE_ROUNDED_INL_H_
#else
#define DLSIM_MEASURE_ROUNDED_INL_H_
#endif

#include <bit>
#include <cmath>
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
        inverse_scale_(hn::Set(X::kF32, std::fabs(spec.inverse_scale))),
        exact_inverse_(hn::Set(X::kF64, spec.exact_inverse)) {}

  // `results` are filled up with zeros to whole rows.
  Found Measure(const ChunkRows& rows, const float* results, ChunkSums& sums) const {
    Counts counts;
    Strip strip;
    rows.ForEachStrip([&](const float* from, size_t first, size_t count) HWY_ATTR {
      const RoundedRows kernel = *this;  // in registers, as the next
      Counts counted = counts;
      for (size_t i = 0; i < count; i += X::kLanes) {
        kernel.Add(from + i, results + first + i, i, counted, strip);
      }
      counts = counted;
      AddSums(strip, count, sums);
    });
    return {X::Total(counts.zeros), X::Total(counts.small), X::Total(counts.overflowing)};
  }

 private:
  static constexpr RoundedResults kResults = kKernel.results;

  // The constructor is written out, as that of PhiloxHalves is.
  struct Counts {
    HWY_INLINE Counts()
        : zeros(hn::Zero(X::kU32)), small(hn::Zero(X::kU32)), overflowing(hn::Zero(X::kU32)) {}
    V zeros, small, overflowing;
  };

  // Adds a vector, of which the strip takes the values from place i on.
  HWY_INLINE void Add(const float* at, const float* result, size_t i, Counts& counts,
                      Strip& strip) const {
    V input = X::Load(at), output = X::Load(result);
    if constexpr (kKernel.small) {
      const X::M zero = hn::Eq(output, hn::Zero(X::kU32));
      counts.zeros = X::CountIn(zero, counts.zeros);
      counts.small = X::CountIn(X::Lt(output, min_normal_), counts.small);
      X::Store(X::Float(hn::IfThenElseZero(zero, input)), &strip.underflows[i]);
    }
    const X::M beyond = X::Lt(max_, output);
    if constexpr (kResults == RoundedResults::kSaturating) {
      counts.overflowing = X::CountIn(beyond, counts.overflowing);
      output = hn::IfThenElse(beyond, max_, output);
    }
    const X::F unscaled = hn::Mul(X::Float(output), inverse_scale_);
    X::Store(unscaled, &strip.unscaled[i]);
    if constexpr (kResults == RoundedResults::kInfinite) {
      counts.overflowing = X::CountIn(beyond, counts.overflowing);
      input = hn::IfThenZeroElse(beyond, input);  // what is not finite has no error
      output = hn::IfThenZeroElse(beyond, output);
    }
    if constexpr (kKernel.exact_errors) {
      X::F error = hn::Sub(unscaled, X::Float(input));
      if constexpr (kResults == RoundedResults::kInfinite) {
        error = X::Float(hn::IfThenZeroElse(beyond, X::Bits(error)));
      }
      X::Store(error, &strip.errors[i]);
    } else {
      X::Store(X::Float(input), &strip.inputs[i]);
      X::Store(X::Float(output), &strip.outputs[i]);
    }
  }

  HWY_INLINE void AddSums(const Strip& strip, size_t count, ChunkSums& sums) const {
    if constexpr (kKernel.exact_errors) {
      Strip::AddSquares(strip.errors, count, sums.errors);
    } else {
      strip.AddErrors(exact_inverse_, count, sums.errors);
    }
    Strip::AddSquares(strip.unscaled, count, sums.quantized);
    if constexpr (kKernel.small) Strip::AddSquares(strip.underflows, count, sums.underflows);
  }

  V min_normal_, max_;
  X::F inverse_scale_;
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

template <bool kSmall, bool kExactErrors>
MeasureRoundedFunction RoundedFunctionFor(RoundedResults results) {
  using R = RoundedResults;
  switch (results) {
    case R::kFinite:
      return MeasureRoundedWith<RoundedKernel{kSmall, kExactErrors, R::kFinite}>;
    case R::kInfinite:
      return MeasureRoundedWith<RoundedKernel{kSmall, kExactErrors, R::kInfinite}>;
    case R::kSaturating:
      return MeasureRoundedWith<RoundedKernel{kSmall, false, R::kSaturating}>;
  }
  return nullptr;
}

inline MeasureRoundedFunction FunctionOf(const RoundedKernel& kernel) {
  if (kernel.exact_errors) {
    return kernel.small ? RoundedFunctionFor<true, true>(kernel.results)
                        : RoundedFunctionFor<false, true>(kernel.results);
  }
  return kernel.small ? RoundedFunctionFor<true, false>(kernel.results)
                      : RoundedFunctionFor<false, false>(kernel.results);
}

// Adds results to the sums of AccumulatedChunk.
inline void AccumulateResults(const RoundedSpec& spec, const float* HWY_RESTRICT results,
                              size_t count, float* HWY_RESTRICT unscaled,
                              float* HWY_RESTRICT scaled) {
  using X = RowVectors;
  const float max = std::bit_cast<float>(spec.saturates ? spec.max_bits : ~codec::kSignBit);
  const X::V largest = hn::Set(X::kU32, std::bit_cast<uint32_t>(max));
  const X::V sign_bit = hn::Set(X::kU32, codec::kSignBit);
  const X::F inverse = hn::Set(X::kF32, spec.inverse_scale);
  const auto add = [](X::F value, float* to) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(X::kF32, to), value), X::kF32, to);
  };
  size_t i = 0;
  for (; i + X::kLanes <= count; i += X::kLanes) {
    const X::V bits = X::Bits(hn::LoadU(X::kF32, results + i));
    const X::V magnitude = hn::AndNot(sign_bit, bits);
    const X::V clamped = hn::IfThenElse(X::Lt(largest, magnitude), largest, magnitude);
    const X::F result = X::Float(hn::Or(clamped, hn::And(bits, sign_bit)));
    add(hn::Mul(result, inverse), unscaled + i);
    add(result, scaled + i);
  }
  for (; i < count; ++i) {
    const bool beyond = std::bit_cast<uint32_t>(std::fabs(results[i])) > spec.max_bits;
    const float result = spec.saturates && beyond ? std::copysign(max, results[i]) : results[i];
    unscaled[i] += result * spec.inverse_scale;
    scaled[i] += result;
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
