// SPDX-License-Identifier: Apache-2.0
#include "dlsim/measure.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "src/base/check.h"
#include "src/base/parallel.h"
#include "src/measure/measure_element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/measure/measure.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/codec/dispatch.h"
#include "src/codec/encode_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

using V = VectorLanes::V;

// Counts one vector of elements; the lanewise twin of MeasureElement.
class VectorCounter {
 public:
  VectorCounter(const CodecSpec& spec, const Unscaling& unscaling)
      : spec_(spec), unscaling_(unscaling), absmax_(kLanes.Set(0)) {}

  struct Result {
    V scaled, unscaled;  // bits of the decoded results
  };

  // Counts a vector of plain results (see QuantizePlain) and zeros, which need little counting.
  HWY_INLINE Result AddPlain(size_t i, V bits, V scaled, V quantized) {
    const auto magnitude = kLanes.And(bits, kLanes.Set(~codec::kSignBit));
    zeros_ += kLanes.CountTrue(kLanes.Eq(magnitude, kLanes.Set(0)));
    kLanes.AddErrorSquares(magnitude, quantized, unscaling_.of_magnitudes,
                           &sums_.errors[i % kSumLanes]);
    return AddValues(i, magnitude, scaled, quantized);
  }

  // Counts any vector.
  HWY_INLINE Result Add(size_t i, V bits, V scaled,
                        const lanewise::RoundedLanes<VectorLanes>& rounded) {
    const auto infinity = kLanes.Set(codec::kInfinityBits), zero = kLanes.Set(0);
    const auto magnitude = kLanes.And(bits, kLanes.Set(~codec::kSignBit));
    const auto scaled_magnitude = kLanes.And(scaled, kLanes.Set(~codec::kSignBit));
    const auto finite = kLanes.Lt(magnitude, infinity);
    nonfinite_outputs_ +=
        kLanes.CountTrue(kLanes.Lt(kLanes.Set(spec_.max_code), rounded.magnitude));

    const auto input = kLanes.Select(finite, magnitude, zero);
    const auto nonzero = kLanes.Lt(zero, input);
    const auto became_zero = kLanes.MaskAnd(nonzero, kLanes.Eq(rounded.magnitude, zero));
    const auto small = kLanes.Lt(rounded.magnitude, kLanes.Set(spec_.min_normal_code));
    const auto became_small = kLanes.MaskAnd(nonzero, small);
    const auto scaled_finite = kLanes.Lt(scaled_magnitude, infinity);
    const auto overflow = kLanes.MaskAnd(scaled_finite, rounded.overflows);
    const auto scaled_to_infinity = kLanes.MaskAnd(finite, kLanes.Eq(scaled_magnitude, infinity));
    zeros_ += kLanes.CountTrue(kLanes.Eq(magnitude, zero));
    underflow_or_subnormal_ += kLanes.CountTrue(became_small);
    overflow_ += kLanes.CountTrue(overflow) + kLanes.CountTrue(scaled_to_infinity);
    if (!kLanes.AllFalse(became_zero)) {
      underflow_ += kLanes.CountTrue(became_zero);
      kLanes.AddSquares(kLanes.Select(became_zero, input, zero), &sums_.underflows[i % kSumLanes]);
    }
    const auto infinite = kLanes.Eq(magnitude, infinity);
    if (!kLanes.AllFalse(kLanes.Lt(kLanes.Set(codec::kInfinityBits - 1), magnitude))) {
      inf_ += kLanes.CountTrue(infinite);
      nan_ += kLanes.CountTrue(kLanes.Lt(infinity, magnitude));
    }
    const auto decoded = lanewise::DecodeMagnitude(kLanes, spec_, rounded.magnitude);
    const auto both_finite = kLanes.MaskAnd(finite, kLanes.Lt(decoded, infinity));
    kLanes.AddErrorSquares(kLanes.Select(both_finite, input, zero),
                           kLanes.Select(both_finite, decoded, zero), unscaling_.of_magnitudes,
                           &sums_.errors[i % kSumLanes]);
    return AddValues(i, input, scaled, decoded);
  }

  // Counts one element by the scalar reference.
  ElementResult AddSingle(size_t i, uint32_t bits, uint32_t scaled, EncodeResult result) {
    return MeasureElement(spec_, unscaling_, bits, scaled, result, singles_, sums_.Lane(i));
  }

  TensorStats Finish(size_t elements) const {
    TensorStats stats = singles_;
    stats.elements = elements;
    stats.zeros += zeros_;
    stats.nan += nan_;
    stats.inf += inf_;
    stats.underflow += underflow_;
    stats.subnormal += underflow_or_subnormal_ - underflow_;
    stats.overflow += overflow_;
    stats.nonfinite_outputs += nonfinite_outputs_;
    stats.absmax = std::fmax(stats.absmax, std::bit_cast<float>(kLanes.MaxOfLanes(absmax_)));
    AddSums(sums_, stats);
    return stats;
  }

 private:
  // Adds a vector to the sums and to absmax: the magnitudes of its inputs, 0 where they are not
  // finite, and of its decoded results, which have the sign of the scaled values.
  HWY_INLINE Result AddValues(size_t i, V input, V scaled, V decoded) {
    const auto output = kLanes.Or(kLanes.And(scaled, kLanes.Set(codec::kSignBit)), decoded);
    const auto unscaled = kLanes.MulFloat(output, unscaling_.inverse);
    kLanes.AddSquares(unscaled, &sums_.quantized[i % kSumLanes]);
    kLanes.AddSquares(input, &sums_.inputs[i % kSumLanes]);
    absmax_ = kLanes.Max(absmax_, input);
    return {output, unscaled};
  }

  static constexpr VectorLanes kLanes{};
  const CodecSpec& spec_;
  Unscaling unscaling_;
  V absmax_;
  ChunkSums sums_;
  TensorStats singles_;
  size_t zeros_ = 0, nan_ = 0, inf_ = 0, underflow_ = 0, underflow_or_subnormal_ = 0;
  size_t overflow_ = 0, nonfinite_outputs_ = 0;
};

// Returns whether all inputs of a vector are zero or have plain results.
HWY_INLINE bool IsPlain(const CodecSpec& spec, V bits, V scaled) {
  constexpr VectorLanes kLanes;
  const auto magnitude = kLanes.And(scaled, kLanes.Set(~codec::kSignBit));
  const auto input = kLanes.And(bits, kLanes.Set(~codec::kSignBit));
  // A zero times an infinite scale is NaN, and a small value times a small scale zero.
  const auto nonzero = kLanes.Lt(kLanes.Set(0), kLanes.Or(input, magnitude));
  // Unsigned: what is below plain_min_bits wraps around to beyond the range.
  const auto offset = kLanes.Sub(magnitude, kLanes.Set(spec.plain_min_bits));
  const auto outside =
      kLanes.LtUnsigned(kLanes.Set(spec.plain_max_bits - spec.plain_min_bits), offset);
  return kLanes.AllFalse(kLanes.MaskAnd(outside, nonzero));
}

template <Rounding kRounding>
HWY_INLINE V Plain(const CodecSpec& spec, V scaled, V random) {
  constexpr VectorLanes kLanes;
  const auto magnitude = kLanes.And(scaled, kLanes.Set(~codec::kSignBit));
  const auto negative = kLanes.Lt(scaled, kLanes.Set(0));
  return lanewise::QuantizePlain<kRounding>(kLanes, spec, magnitude, negative, random);
}

// Adds a vector of floats to memory.
HWY_INLINE void AddTo(V bits, float* sums) {
  constexpr VectorLanes kLanes;
  kLanes.StoreFloats(kLanes.AddFloat(kLanes.LoadFloats(sums), bits), sums);
}

// Measures a chunk; adds the results to `sums` unless it is null.
template <Rounding kRounding>
TensorStats MeasureWith(const float* values, size_t count, uint64_t first_index,
                        const Measurement& question, const AccumulatedChunk* sums) {
  constexpr VectorLanes kLanes;
  const CodecSpec spec = MakeCodecSpec(question.conversion);
  VectorCounter counter(spec, MakeUnscaling(question.scale));
  const auto whole = [&](size_t i, V bits, V scaled, V random) HWY_ATTR {
    const VectorCounter::Result result =
        IsPlain(spec, bits, scaled)
            ? counter.AddPlain(i, bits, scaled, Plain<kRounding>(spec, scaled, random))
            : counter.Add(i, bits, scaled,
                          lanewise::EncodeMagnitude<kRounding>(kLanes, spec, scaled, random));
    if (sums != nullptr) {
      AddTo(result.unscaled, sums->unscaled.data() + i);
      AddTo(result.scaled, sums->scaled.data() + i);
    }
  };
  const auto single = [&](size_t i, uint32_t bits, uint32_t scaled, EncodeResult encoded) {
    const ElementResult result = counter.AddSingle(i, bits, scaled, encoded);
    if (sums != nullptr) {
      sums->unscaled[i] += result.unscaled;
      sums->scaled[i] += result.scaled;
    }
  };
  EncodeLoop<kRounding>(spec, question.scale, question.random, first_index, values, count, whole,
                        single);
  return counter.Finish(count);
}

TensorStats MeasureChunkOnTarget(const float* values, size_t count, uint64_t first_index,
                                 const Measurement& question, const AccumulatedChunk* sums) {
  TensorStats stats;
  DispatchRounding(question.conversion.rounding, [&](auto rounding) {
    stats = MeasureWith<decltype(rounding)::value>(values, count, first_index, question, sums);
  });
  return stats;
}

double SumOfSquaresOnTarget(const float* values, size_t count) {
  constexpr VectorLanes kLanes;
  alignas(64) SumLanes sums{};
  const size_t lanes = VectorLanes::Count();
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    kLanes.AddSquares(kLanes.LoadFloats(values + i), &sums[i % kSumLanes]);
  }
  for (; i < count; ++i) AddSquare(values[i], i, sums);
  return AddLanes(sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim {
namespace {

DLSIM_EXPORT(MeasureChunkOnTarget);
DLSIM_EXPORT(SumOfSquaresOnTarget);

}  // namespace

TensorStats MeasureChunk(std::span<const float> values, uint64_t first_index,
                         const Measurement& question, const AccumulatedChunk* sums) {
  DLSIM_CHECK(values.size() <= kChunkElements);
  return DLSIM_DISPATCH(MeasureChunkOnTarget)(values.data(), values.size(), first_index, question,
                                              sums);
}

double SumOfSquaresOfChunk(std::span<const float> values) {
  DLSIM_CHECK(values.size() <= kChunkElements);
  return DLSIM_DISPATCH(SumOfSquaresOnTarget)(values.data(), values.size());
}

std::vector<TensorStats> Measure(std::span<const float> values,
                                 std::span<const Measurement> questions) {
  const size_t blocks = (values.size() + kBlockElements - 1) / kBlockElements;
  std::vector<TensorStats> partial(blocks * questions.size());
  ParallelForBlocks(values.size(), [&](size_t first, size_t count) {
    TensorStats* const of_block = partial.data() + first / kBlockElements * questions.size();
    for (size_t begin = first; begin < first + count; begin += kChunkElements) {
      const size_t length = std::min(kChunkElements, first + count - begin);
      for (size_t q = 0; q < questions.size(); ++q) {
        of_block[q].Merge(MeasureChunk(values.subspan(begin, length), begin, questions[q]));
      }
    }
  });
  std::vector<TensorStats> totals(questions.size());
  for (size_t i = 0; i < partial.size(); ++i) totals[i % questions.size()].Merge(partial[i]);
  return totals;
}

TensorStats MeasureChunkReference(std::span<const float> values, uint64_t first_index,
                                  const Measurement& question) {
  const CodecSpec spec = MakeCodecSpec(question.conversion);
  const Unscaling unscaling = MakeUnscaling(question.scale);
  TensorStats stats;
  ChunkSums sums;
  stats.elements = values.size();
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t scaled = std::bit_cast<uint32_t>(values[i] * question.scale);
    const bool stochastic = question.conversion.rounding == Rounding::kStochastic;
    const uint32_t random = stochastic ? RandomBits(question.random, first_index + i) : 0;
    const EncodeResult result = Encode(spec, question.conversion.rounding, scaled, random);
    MeasureElement(spec, unscaling, std::bit_cast<uint32_t>(values[i]), scaled, result, stats,
                   sums.Lane(i));
  }
  AddSums(sums, stats);
  return stats;
}

TensorStats Measure(std::span<const float> values, const Measurement& question) {
  return Measure(values, std::span(&question, 1)).front();
}

}  // namespace dlsim
#endif  // HWY_ONCE
