// SPDX-License-Identifier: Apache-2.0
#include "dlsim/measure.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "src/base/check.h"
#include "src/base/parallel.h"
#include "src/measure/measure_chunk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/measure/measure.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/codec/dispatch.h"
#include "src/codec/encode_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

// A bit that no code has.
inline constexpr uint32_t kOverflows = 0x80000000;

template <Rounding kRounding>
HWY_NOINLINE void EncodeChunk(const CodecSpec& of_chunk, const Measurement& question,
                              uint64_t first_index, const float* HWY_RESTRICT values, size_t count,
                              uint32_t* HWY_RESTRICT codes) {
  const CodecSpec spec = of_chunk;
  const float scale = question.scale;
  ForEachRun<kRounding>(spec, scale, question.random, first_index, values, count,
                        [&](size_t begin, size_t end, const uint32_t* random) HWY_ATTR {
                          for (size_t i = begin; i < end; ++i) {
                            const codec::Rounded result = codec::EncodeBits<kRounding>(
                                spec, std::bit_cast<uint32_t>(values[i] * scale),
                                kRounding == Rounding::kStochastic ? random[i - begin] : 0);
                            codes[i] = result.code | (result.overflows & kOverflows);
                          }
                        });
}

// Counts the elements of a chunk and adds up their squares: the definitions of docs/numerics.md,
// section 4. In one loop compilers would not find vectors.
TensorStats MeasureChunkOnTarget(const float* HWY_RESTRICT values, size_t count,
                                 uint64_t first_index, const Measurement& question,
                                 const AccumulatedChunk* into) {
  alignas(64) uint32_t codes[kChunkElements];
  alignas(64) float outputs[kChunkElements];  // decoded, still scaled
  const CodecSpec spec = MakeCodecSpec(question.conversion);
  DispatchRounding(question.conversion.rounding, [&](auto rounding) {
    EncodeChunk<decltype(rounding)::value>(spec, question, first_index, values, count, codes);
  });
  for (size_t i = 0; i < count; ++i) outputs[i] = std::bit_cast<float>(Decode(spec, codes[i]));

  const float scale = question.scale;
  const uint32_t code_bits = MagnitudeMask(question.conversion.format);
  uint32_t zeros = 0, nan = 0, inf = 0, underflow = 0, subnormal = 0, overflow = 0, nonfinite = 0;
  uint32_t absmax = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(values[i]) & ~codec::kSignBit;
    const uint32_t scaled = std::bit_cast<uint32_t>(values[i] * scale) & ~codec::kSignBit;
    const uint32_t code = codes[i] & code_bits;
    const uint32_t finite = magnitude < codec::kInfinityBits, zero = magnitude == 0;
    const uint32_t kept = code > 0, small = code < spec.min_normal_code;
    zeros += zero;
    inf += magnitude == codec::kInfinityBits;
    nan += magnitude > codec::kInfinityBits;
    nonfinite += code > spec.max_code;
    underflow += finite & ~zero & ~kept;
    subnormal += finite & ~zero & kept & small;
    // Scaling alone may overflow float32: then encoding was given an infinity.
    overflow += finite & (codes[i] >> 31 | uint32_t{scaled == codec::kInfinityBits});
    absmax = codec::Max(absmax, magnitude & codec::MaskOf(magnitude < codec::kInfinityBits));
  }

  // What undoes the scale: the float32 reciprocal that scalers multiply with, and for the error the
  // reciprocal itself, of magnitudes.
  const float inverse = 1.0f / scale;
  const double of_scale = std::fabs(double{scale}),
               of_magnitudes = of_scale == 0 ? 0 : 1 / of_scale;
  alignas(64) SumLanes inputs{}, errors{}, underflows{}, quantized{};
  ForEachLane(count, [&](size_t i, size_t lane) HWY_ATTR {
    const uint32_t in = std::bit_cast<uint32_t>(values[i]) & ~codec::kSignBit;
    const uint32_t out = std::bit_cast<uint32_t>(outputs[i]) & ~codec::kSignBit;
    const codec::Mask in_finite = codec::MaskOf(in < codec::kInfinityBits);
    const codec::Mask both_finite = in_finite & codec::MaskOf(out < codec::kInfinityBits);
    const double input = std::bit_cast<float>(in & in_finite);
    const double lost = std::bit_cast<float>(in & in_finite & codec::MaskOf(out == 0));
    const double unscaled = outputs[i] * inverse;
    // The square of an error is not exact: never fused, so that all machines agree.
    const double error = double{std::bit_cast<float>(out & both_finite)} * of_magnitudes -
                         double{std::bit_cast<float>(in & both_finite)};
    inputs[lane] += input * input;
    errors[lane] += error * error;
    underflows[lane] += lost * lost;
    quantized[lane] += unscaled * unscaled;
  });
  if (into != nullptr) {
    for (size_t i = 0; i < count; ++i) into->unscaled[i] += outputs[i] * inverse;
    for (size_t i = 0; i < count; ++i) into->scaled[i] += outputs[i];
  }
  return {.elements = count,
          .zeros = zeros,
          .nan = nan,
          .inf = inf,
          .underflow = underflow,
          .subnormal = subnormal,
          .overflow = overflow,
          .nonfinite_outputs = nonfinite,
          .absmax = std::bit_cast<float>(absmax),
          .sum_of_squares = AddLanes(inputs),
          .error_sum_of_squares = AddLanes(errors),
          .underflow_sum_of_squares = AddLanes(underflows),
          .quantized_sum_of_squares = AddLanes(quantized)};
}

double SumOfSquaresOnTarget(const float* values, size_t count) {
  alignas(64) SumLanes sums{};
  ForEachLane(count, [&](size_t i, size_t lane)
                         HWY_ATTR { sums[lane] += double{values[i]} * double{values[i]}; });
  return AddLanes(sums);
}

double SumOnTarget(const float* values, size_t count) {
  alignas(64) SumLanes sums{};
  ForEachLane(count, [&](size_t i, size_t lane) HWY_ATTR {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    const codec::Mask finite = codec::MaskOf((bits & ~codec::kSignBit) < codec::kInfinityBits);
    sums[lane] += double{std::bit_cast<float>(bits & finite)};
  });
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
DLSIM_EXPORT(SumOnTarget);

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

double SumOfChunk(std::span<const float> values) {
  DLSIM_CHECK(values.size() <= kChunkElements);
  return DLSIM_DISPATCH(SumOnTarget)(values.data(), values.size());
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

TensorStats Measure(std::span<const float> values, const Measurement& question) {
  return Measure(values, std::span(&question, 1)).front();
}

}  // namespace dlsim
#endif  // HWY_ONCE
