// SPDX-License-Identifier: Apache-2.0
// Measures chunks of finite values, rounded to nearest even: whole vectors without a branch, and
// nothing counted that a chunk's magnitudes rule out; re-included per SIMD target.
#if defined(DLSIM_MEASURE_NEAREST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_MEASURE_NEAREST_INL_H_
#undef DLSIM_MEASURE_NEAREST_INL_H_
#else
#define DLSIM_MEASURE_NEAREST_INL_H_
#endif

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "dlsim/tensor_stats.h"
#include "src/measure/chunk_inputs.h"
#include "src/measure/chunk_rows-inl.h"
#include "src/measure/measure_element.h"
#include "src/measure/measure_nearest.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if DLSIM_HAS_CHUNK_ROWS

inline ChunkInputs MeasureInputsOf(const float* values, size_t count) {
  using X = RowVectors;
  const ChunkRows rows(values, count);
  const X::V one = hn::Set(X::kU32, 1);
  X::V largest = hn::Zero(X::kU32), zeros = largest;
  X::V smallest_less_one = hn::Set(X::kU32, ~uint32_t{0});  // a zero wraps around to this
  alignas(64) SumLanes sums{};
  constexpr size_t kColumns = 2;  // whose sums do not wait for each other
  for (size_t lane = 0; lane < kSumLanes; lane += kColumns * X::kLanes) {
    SquareSums squares[kColumns];
    rows.ForEach(lane, [&](const float* at) HWY_ATTR {
      for (size_t c = 0; c < kColumns; ++c) {
        const X::V bits = X::Load(at + c * X::kLanes);
        largest = X::Max(largest, bits);
        smallest_less_one = hn::Min(smallest_less_one, hn::Sub(bits, one));
        zeros = X::CountIn(hn::Eq(bits, hn::Zero(X::kU32)), zeros);
        squares[c].Add(at + c * X::kLanes);
      }
    });
    for (size_t c = 0; c < kColumns; ++c) squares[c].Store(&sums[lane + c * X::kLanes]);
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

// Counts the values of a chunk below a magnitude.
inline size_t CountBelowOf(const float* values, size_t count, uint32_t magnitude) {
  using X = RowVectors;
  const ChunkRows rows(values, count);
  const X::V limit = hn::Set(X::kU32, magnitude);
  X::V below = hn::Zero(X::kU32);
  for (size_t lane = 0; lane < kSumLanes; lane += X::kLanes) {
    rows.ForEach(lane, [&](const float* at)
                           HWY_ATTR { below = X::CountIn(X::Lt(X::Load(at), limit), below); });
  }
  return X::Total(below) - (magnitude > 0 ? rows.padding() : 0);
}

// Measures the rows of a chunk.
template <NearestKernel kKernel>
class NearestRows {
 public:
  using X = RowVectors;
  using V = X::V;

  // How many results are zero, how many below the smallest normal one, and how many overflow.
  struct Found {
    size_t zeros = 0, small = 0, overflowing = 0;
  };

  explicit NearestRows(const NearestSpec& nearest)
      : min_normal_(hn::Set(X::kU32, nearest.min_normal_bits)),
        dropped_(hn::Set(X::kU32, nearest.dropped_bits << 23)),
        max_(hn::Set(X::kU32, nearest.max_bits)),
        rounded_product_(hn::Set(X::kU32, nearest.rounded_product_bits)),
        scale_(hn::Set(X::kF32, nearest.scale)),
        inverse_scale_(hn::Set(X::kF32, nearest.inverse_scale)),
        exact_inverse_(hn::Set(X::kF64, nearest.exact_inverse)) {}

  Found Measure(const ChunkRows& rows, ChunkSums& sums) const {
    Counts counts;
    Strip strip;
    rows.ForEachStrip([&](const float* from, size_t, size_t count) HWY_ATTR {
      const NearestRows kernel = *this;  // in registers, as the next
      Counts counted = counts;
      for (size_t i = 0; i < count; i += X::kLanes) kernel.Add(from + i, i, counted, strip);
      counts = counted;
      AddSums(strip, count, sums);
    });
    return {X::Total(counts.zeros), X::Total(counts.small), X::Total(counts.overflowing)};
  }

 private:
  static constexpr bool kErrorsOnly = kKernel.errors_only;
  static constexpr bool kSmall = kKernel.small != SmallResults::kNone;
  static constexpr bool kZeros =
      kKernel.small == SmallResults::kAny || kKernel.small == SmallResults::kFlushed;
  static constexpr Overflowing kOverflowing = kKernel.overflowing;

  // The constructor is written out, as that of PhiloxHalves is.
  struct Counts {
    HWY_INLINE Counts()
        : zeros(hn::Zero(X::kU32)), small(hn::Zero(X::kU32)), overflowing(hn::Zero(X::kU32)) {}
    V zeros, small, overflowing;
  };

  // Adds a vector, of which the strip takes the values from place i on.
  HWY_INLINE void Add(const float* at, size_t i, Counts& counts, Strip& strip) const {
    const V input = X::Load(at);
    V output = input;
    if constexpr (kKernel.multiplies) output = X::Bits(hn::Mul(X::Float(input), scale_));
    if constexpr (kKernel.rounds_products) output = RoundProduct(output, rounded_product_);
    output = Round(output);
    if constexpr (kSmall) output = CountSmall(input, output, i, counts, strip);
    AddErrors(input, output, i, counts, strip);
    if constexpr (kErrorsOnly) return;
    X::F unscaled = X::Float(output);
    if constexpr (kOverflowing == Overflowing::kSaturating) unscaled = X::Float(Clamp(output));
    if constexpr (kKernel.multiplies) unscaled = hn::Mul(unscaled, inverse_scale_);
    X::Store(unscaled, &strip.unscaled[i]);
  }

  // Returns the results, of which small ones may be flushed.
  HWY_INLINE V CountSmall(V input, V output, size_t i, Counts& counts, Strip& strip) const {
    const X::M small = X::Lt(output, min_normal_);
    if constexpr (kKernel.small == SmallResults::kFlushed) {
      output = hn::IfThenZeroElse(small, output);
    }
    if constexpr (!kErrorsOnly) counts.small = X::CountIn(small, counts.small);
    if constexpr (kZeros && !kErrorsOnly) {
      const X::M zero = hn::Eq(output, hn::Zero(X::kU32));
      counts.zeros = X::CountIn(zero, counts.zeros);
      X::Store(X::Float(hn::IfThenElseZero(zero, input)), &strip.underflows[i]);
    }
    return output;
  }

  // What overflows to infinity has no error.
  HWY_INLINE void AddErrors(V input, V output, size_t i, Counts& counts, Strip& strip) const {
    const X::M overflows = X::Lt(max_, output);
    if constexpr (kOverflowing != Overflowing::kNone) {
      counts.overflowing = X::CountIn(overflows, counts.overflowing);
    }
    if constexpr (kKernel.multiplies) {
      if constexpr (kOverflowing == Overflowing::kSaturating) output = Clamp(output);
      if constexpr (kOverflowing == Overflowing::kToInfinity) {
        input = hn::IfThenZeroElse(overflows, input);
        output = hn::IfThenZeroElse(overflows, output);
      }
      X::Store(X::Float(input), &strip.inputs[i]);
      X::Store(X::Float(output), &strip.outputs[i]);
    } else {
      // Exact: the error is a multiple of the input's last bit, and not above it in size.
      X::F error = hn::Sub(X::Float(output), X::Float(input));
      if constexpr (kOverflowing == Overflowing::kToInfinity) {
        error = X::Float(hn::IfThenZeroElse(overflows, X::Bits(error)));
      }
      X::Store(error, &strip.errors[i]);
    }
  }

  HWY_INLINE V Clamp(V output) const { return hn::IfThenElse(X::Lt(max_, output), max_, output); }

  // Rounds to nearest even by one addition: x + C - C with C = 2^dropped * max(2^exponent of x,
  // min_normal). x + C lies in [C, 2C), whose unit is the last bit that the result keeps, and C is
  // an even multiple of it: ties go to even. Holds while 2C is finite.
  HWY_INLINE V Round(V magnitude) const {
    V exponent = min_normal_;
    if constexpr (kKernel.small != SmallResults::kOnly) {
      exponent = hn::And(magnitude, hn::Set(X::kU32, codec::kInfinityBits));
      if constexpr (kSmall) exponent = X::Max(exponent, min_normal_);
    }
    const X::F c = X::Float(hn::Add(exponent, dropped_));
    return X::Bits(hn::Sub(hn::Add(X::Float(magnitude), c), c));
  }

  HWY_INLINE void AddSums(const Strip& strip, size_t count, ChunkSums& sums) const {
    if constexpr (kKernel.multiplies) {
      strip.AddErrors(exact_inverse_, count, sums.errors);
    } else {
      Strip::AddSquares(strip.errors, count, sums.errors);
    }
    if constexpr (kErrorsOnly) return;
    Strip::AddSquares(strip.unscaled, count, sums.quantized);
    if constexpr (kZeros) Strip::AddSquares(strip.underflows, count, sums.underflows);
  }

  V min_normal_, dropped_, max_, rounded_product_;
  X::F scale_, inverse_scale_;
  X::Sum exact_inverse_;
};

template <NearestKernel kKernel>
TensorStats MeasureNearestWith(const NearestSpec& nearest, const float* values, size_t count,
                               const ChunkInputs& inputs) {
  const ChunkRows rows(values, count);
  ChunkSums sums;
  const auto found = NearestRows<kKernel>(nearest).Measure(rows, sums);
  TensorStats stats = inputs.Stats(count);
  stats.error_sum_of_squares = AddLanes(sums.errors);
  stats.underflow_sum_of_squares = AddLanes(sums.underflows);
  stats.quantized_sum_of_squares = AddLanes(sums.quantized);
  stats.overflow = found.overflowing;
  if (found.overflowing > 0 && !nearest.saturates) {
    stats.nonfinite_outputs = found.overflowing;
    AddSquare(nearest.overflow_result, stats.quantized_sum_of_squares);
    if (std::isnan(stats.quantized_sum_of_squares)) {
      stats.quantized_sum_of_squares = std::numeric_limits<double>::quiet_NaN();
    }
  }
  if constexpr (kKernel.errors_only || kKernel.small == SmallResults::kNone) return stats;
  const size_t zeros = inputs.zeros + rows.padding();
  const bool became_zero = kKernel.small != SmallResults::kSubnormal;
  stats.underflow = became_zero ? found.zeros - zeros : 0;
  stats.subnormal = found.small - (became_zero ? found.zeros : zeros);
  return stats;
}

using MeasureFunction = TensorStats (*)(const NearestSpec&, const float*, size_t,
                                        const ChunkInputs&);

template <bool kErrorsOnly, Overflowing kOverflowing>
MeasureFunction WithoutMultiplicationsFor(SmallResults small) {
  using S = SmallResults;
  constexpr S kFew = kErrorsOnly ? S::kAny : S::kSubnormal;  // as KernelFor has it
  switch (small) {
    case S::kNone:
      return MeasureNearestWith<NearestKernel{false, kErrorsOnly, S::kNone, kOverflowing}>;
    case S::kSubnormal:
      return MeasureNearestWith<NearestKernel{false, kErrorsOnly, kFew, kOverflowing}>;
    case S::kAny:
      return MeasureNearestWith<NearestKernel{false, kErrorsOnly, S::kAny, kOverflowing}>;
    case S::kFlushed:
      return MeasureNearestWith<NearestKernel{false, kErrorsOnly, S::kFlushed, kOverflowing}>;
    case S::kOnly:
      return MeasureNearestWith<NearestKernel{false, true, S::kOnly, Overflowing::kNone}>;
  }
  return nullptr;
}

// Rounded twice, a value slightly above half of the smallest result may become zero.
template <bool kErrorsOnly>
MeasureFunction RoundingProductsFor(SmallResults small) {
  using S = SmallResults;
  constexpr Overflowing kNone = Overflowing::kNone;
  return small == S::kFlushed
             ? MeasureNearestWith<NearestKernel{false, kErrorsOnly, S::kFlushed, kNone, true}>
             : MeasureNearestWith<NearestKernel{false, kErrorsOnly, S::kAny, kNone, true}>;
}

template <SmallResults kSmall>
MeasureFunction WithMultiplicationsFor(Overflowing overflowing) {
  switch (overflowing) {
    case Overflowing::kNone:
      return MeasureNearestWith<NearestKernel{true, false, kSmall, Overflowing::kNone}>;
    case Overflowing::kToInfinity:
      return MeasureNearestWith<NearestKernel{true, false, kSmall, Overflowing::kToInfinity}>;
    case Overflowing::kSaturating:
      return MeasureNearestWith<NearestKernel{true, false, kSmall, Overflowing::kSaturating}>;
  }
  return nullptr;
}

inline MeasureFunction FunctionOf(const NearestKernel& kernel) {
  if (kernel.multiplies) {
    using S = SmallResults;
    if (kernel.small == S::kNone) return WithMultiplicationsFor<S::kNone>(kernel.overflowing);
    return kernel.small == S::kFlushed ? WithMultiplicationsFor<S::kFlushed>(kernel.overflowing)
                                       : WithMultiplicationsFor<S::kAny>(kernel.overflowing);
  }
  if (kernel.rounds_products) {
    return kernel.errors_only ? RoundingProductsFor<true>(kernel.small)
                              : RoundingProductsFor<false>(kernel.small);
  }
  constexpr Overflowing kNone = Overflowing::kNone, kInfinite = Overflowing::kToInfinity;
  if (kernel.overflowing == kNone) {
    return kernel.errors_only ? WithoutMultiplicationsFor<true, kNone>(kernel.small)
                              : WithoutMultiplicationsFor<false, kNone>(kernel.small);
  }
  return kernel.errors_only ? WithoutMultiplicationsFor<true, kInfinite>(kernel.small)
                            : WithoutMultiplicationsFor<false, kInfinite>(kernel.small);
}

#else

// No kernel applies without ChunkInputs.
inline ChunkInputs MeasureInputsOf(const float* /*values*/, size_t /*count*/) { return {}; }
inline size_t CountBelowOf(const float* /*values*/, size_t /*count*/, uint32_t /*magnitude*/) {
  return 0;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
