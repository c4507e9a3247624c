// SPDX-License-Identifier: Apache-2.0
#include "dlsim/measure.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>

#include "dlsim/measure_step.h"
#include "src/base/check.h"
#include "src/base/parallel.h"
#include "src/measure/measure_chunk.h"
#include "src/measure/step_blocks.h"

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
HWY_NOINLINE void EncodeChunk(const CodecSpec& of_chunk, const ArrayConversion& question,
                              uint64_t first_index, const float* HWY_RESTRICT values, size_t count,
                              uint32_t* HWY_RESTRICT codes) {
  const CodecSpec spec = of_chunk;
  const float scale = question.scale;
  ForEachRun<kRounding>(spec, scale, question.random, first_index, values, count,
                        [&](size_t begin, size_t end, const uint32_t* random) HWY_ATTR {
                          for (size_t i = begin; i < end; ++i) {
                            const EncodeResult result = EncodeWith<kRounding>(
                                spec, std::bit_cast<uint32_t>(values[i] * scale),
                                kRounding == Rounding::kStochastic ? random[i - begin] : 0);
                            codes[i] = result.code | (result.overflows & kOverflows);
                          }
                        });
}

// Counts the elements of a chunk and adds up their squares: the definitions of docs/numerics.md,
// section 4. In one loop compilers would not find vectors.
TensorStats MeasureChunkOnTarget(const float* HWY_RESTRICT values, size_t count,
                                 uint64_t first_index, const ArrayConversion& question,
                                 const AccumulatedChunk* into) {
  alignas(64) uint32_t codes[kChunkElements];
  alignas(64) float outputs[kChunkElements];  // decoded, still scaled
  const CodecSpec spec = MakeCodecSpec(question.conversion);
  WithRounding(question.conversion.rounding, [&](auto rounding) {
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

// Returns the float64 sum of squares of a chunk in the order of measure.h.
double SumOfSquaresOnTarget(const float* values, size_t count) {
  alignas(64) SumLanes sums{};
  ForEachLane(count, [&](size_t i, size_t lane)
                         HWY_ATTR { sums[lane] += double{values[i]} * double{values[i]}; });
  return AddLanes(sums);
}

// Returns the sum of the finite values of a chunk in the same order.
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
                         const ArrayConversion& question, const AccumulatedChunk* sums) {
  DLSIM_CHECK(values.size() <= kChunkElements);
  return DLSIM_DISPATCH(MeasureChunkOnTarget)(values.data(), values.size(), first_index, question,
                                              sums);
}

std::vector<TensorStats> Measure(std::span<const float> values,
                                 std::span<const ArrayConversion> questions) {
  const size_t blocks = (values.size() + kBlockElements - 1) / kBlockElements;
  std::vector<TensorStats> partial(blocks * questions.size());
  ParallelForBlocks(values.size(), [&](size_t first, size_t count) {
    TensorStats* const of_block = partial.data() + first / kBlockElements * questions.size();
    for (size_t begin = first; begin < first + count; begin += kChunkElements) {
      const size_t length = std::min(kChunkElements, first + count - begin);
      for (size_t q = 0; q < questions.size(); ++q) {
        of_block[q].Merge(MeasureChunk(values.subspan(begin, length),
                                       questions[q].first_index + begin, questions[q]));
      }
    }
  });
  std::vector<TensorStats> totals(questions.size());
  for (size_t i = 0; i < partial.size(); ++i) totals[i % questions.size()].Merge(partial[i]);
  return totals;
}

TensorStats Measure(std::span<const float> values, const ArrayConversion& question) {
  return Measure(values, std::span(&question, 1)).front();
}

namespace {

// Looks at gradients, unscaled and still scaled.
GradientDetail DetailOf(const DetailQuestion& question, std::span<const float> unscaled,
                        std::span<const float> scaled) {
  const bool limit_unscaled = question.limit_domain == ClipDomain::kUnscaled;
  GradientDetail detail;
  for (size_t i = 0; i < unscaled.size(); ++i) {
    const float gradient = std::fabs(unscaled[i]), still_scaled = std::fabs(scaled[i]);
    if (question.sums) {
      detail.scaled_sum += double{scaled[i]};
      detail.scaled_sum_of_squares += double{still_scaled} * double{still_scaled};
    }
    const bool replaces = gradient > detail.absmax || std::isnan(gradient);  // and NaN stays
    detail.absmax = replaces ? gradient : detail.absmax;
    detail.below_edge += still_scaled < question.edge ? 1 : 0;
    detail.above_edge += still_scaled >= question.edge ? 1 : 0;
    detail.above_limit += (limit_unscaled ? gradient : still_scaled) > question.limit ? 1 : 0;
  }
  detail.elements = unscaled.size();
  if (!std::isfinite(detail.absmax)) detail.absmax = std::numeric_limits<float>::infinity();
  return detail;
}

// What the blocks of a gradient hold.
struct BlockAnswer {
  std::vector<TensorStats> parts;
  double unscaled_squares = 0, scaled_squares = 0;  // of the sums over the parts
  GradientDetail detail = {};

  // Adds what follows in index order.
  BlockAnswer& operator+=(const BlockAnswer& later) {
    for (size_t part = 0; part < parts.size(); ++part) parts[part].Merge(later.parts[part]);
    unscaled_squares += later.unscaled_squares;
    scaled_squares += later.scaled_squares;
    detail.Merge(later.detail);
    return *this;
  }
};

}  // namespace

StepAnswer MeasureStep(const TraceStep& step, const StepQuestion& question,
                       const StepOptions& options) {
  const std::vector<int64_t> parts = PartNumbers(step, options.accumulation);
  BlockAnswer zero;
  zero.parts.resize(parts.size());
  const std::vector<TensorSources> tensors = CollectTensors(step, Pass::kBackward);
  const auto measure = [&](const Block& block, BlockLoader& loader) {
    ArrayConversion how = {question.conversion, question.ScaleOf(block.tensor), {}};
    how.random.seed = options.seed;
    BlockAnswer found = zero;
    std::vector<float> unscaled, scaled;
    for (size_t begin = 0; begin < block.count; begin += kChunkElements) {
      unscaled.assign(std::min(kChunkElements, block.count - begin), 0.0f);
      scaled.assign(unscaled.size(), 0.0f);
      for (size_t part = 0; part < parts.size(); ++part) {
        const std::span<const float> values = loader.Values(part);
        if (begin >= values.size()) continue;
        const size_t count = std::min(kChunkElements, values.size() - begin);
        const AccumulatedChunk sums = {std::span(unscaled).first(count),
                                       std::span(scaled).first(count)};
        if (how.conversion.rounding == Rounding::kStochastic) {
          how.random.stream =
              StreamOf(tensors[block.tensor].first->info->name, step.step, parts[part]);
        }
        found.parts[part].Merge(
            MeasureChunk(values.subspan(begin, count), block.begin + begin, how, &sums));
      }
      found.unscaled_squares +=
          DLSIM_DISPATCH(SumOfSquaresOnTarget)(unscaled.data(), unscaled.size());
      found.scaled_squares += DLSIM_DISPATCH(SumOfSquaresOnTarget)(scaled.data(), scaled.size());
      if (question.detail) found.detail.Merge(DetailOf(*question.detail, unscaled, scaled));
    }
    return found;
  };
  StepAnswer answer;
  for (BlockAnswer& found : AddBlocks(tensors, options.accumulation, zero, measure)) {
    TensorAnswer& tensor = answer.emplace_back();
    TensorAnswer::Rest& rest = tensor.MakeRest();
    for (const TensorStats& part : found.parts) tensor.total.Merge(part);
    if (parts.size() > 1) rest.parts = std::move(found.parts);
    rest.converted_squares = found.unscaled_squares;
    rest.detail = found.detail;
    tensor.scaled_sum_finite = std::isfinite(found.scaled_squares);
    tensor.unscaled_finite = std::isfinite(found.unscaled_squares);
  }
  return answer;
}

std::vector<double> SumGradients(const TraceStep& step) {
  const auto sum_of = [](const Block&, BlockLoader& loader) {
    double sum = 0;
    for (size_t part = 0; part < loader.part_count(); ++part) {
      const std::span<const float> values = loader.Values(part);
      double of_part = 0;
      for (size_t begin = 0; begin < values.size(); begin += kChunkElements) {
        of_part += DLSIM_DISPATCH(SumOnTarget)(&values[begin],
                                               std::min(kChunkElements, values.size() - begin));
      }
      sum += of_part;
    }
    return sum;
  };
  return AddBlocks(CollectTensors(step, Pass::kBackward), Accumulation::kQuantizeThenSum, 0.0,
                   sum_of);
}

std::vector<std::valarray<uint64_t>> CountGradients(
    const TraceStep& step, Accumulation accumulation,
    std::span<const std::vector<uint32_t>> magnitudes) {
  const std::valarray<uint64_t> zero(magnitudes.size());
  const auto count_of = [&](const Block& block, BlockLoader& loader) {
    std::valarray<uint64_t> counts = zero;
    for (size_t part = 0; part < loader.part_count(); ++part) {
      const std::span<const float> values = loader.Values(part);
      for (size_t i = 0; i < counts.size(); ++i) {
        uint32_t count = 0;
        for (const float value : values) {
          count +=
              (std::bit_cast<uint32_t>(value) & ~codec::kSignBit) >= magnitudes[i][block.tensor];
        }
        counts[i] += count;
      }
    }
    return counts;
  };
  return AddBlocks(CollectTensors(step, Pass::kBackward), accumulation, zero, count_of);
}

uint32_t StreamOf(const std::string& tensor, int64_t step, int64_t micro) {
  uint32_t hash = 2166136261u;
  const auto add = [&](uint8_t byte) { hash = (hash ^ byte) * 16777619u; };
  for (const char c : tensor) add(static_cast<uint8_t>(c));
  for (const int64_t number : {step, micro}) {
    for (int shift = 0; shift < 64; shift += 8) {
      add(static_cast<uint8_t>(static_cast<uint64_t>(number) >> shift));
    }
  }
  return hash;
}

}  // namespace dlsim
#endif  // HWY_ONCE
