// SPDX-License-Identifier: Apache-2.0
#include "src/measure/measure_rounded.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "dlsim/convert.h"
#include "src/base/check.h"
#include "src/measure/measure_chunk.h"
#include "src/measure/measure_element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/measure/measure_rounded.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/codec/dispatch.h"
#include "src/measure/measure_rounded-inl.h"
#include "src/measure/round_values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

void RoundOnTarget([[maybe_unused]] const RoundedKernel& kernel,
                   [[maybe_unused]] const RoundedSpec& spec, [[maybe_unused]] const float* values,
                   [[maybe_unused]] size_t count, [[maybe_unused]] float* results) {
#if DLSIM_HAS_CHUNK_ROWS
  RoundValuesOf(spec, kernel, values, count, results);
#endif
}

void ScaleDownOnTarget([[maybe_unused]] const RoundedSpec& spec,
                       [[maybe_unused]] const float* values, [[maybe_unused]] size_t count,
                       [[maybe_unused]] float* scaled) {
#if DLSIM_HAS_CHUNK_ROWS
  ScaleDown(spec, values, count, scaled);
#endif
}

void ScaleUpOnTarget([[maybe_unused]] const RoundedSpec& spec, [[maybe_unused]] float* results,
                     [[maybe_unused]] size_t count) {
#if DLSIM_HAS_CHUNK_ROWS
  ScaleUp(spec, results, count);
#endif
}

TensorStats MeasureRoundedOnTarget([[maybe_unused]] const RoundedKernel& kernel,
                                   [[maybe_unused]] const RoundedSpec& spec,
                                   [[maybe_unused]] const float* values,
                                   [[maybe_unused]] const float* results,
                                   [[maybe_unused]] size_t count,
                                   [[maybe_unused]] const ChunkInputs& inputs) {
#if DLSIM_HAS_CHUNK_ROWS
  return FunctionOf(kernel)(spec, values, results, count, inputs);
#else
  return {};
#endif
}

void AccumulateOnTarget([[maybe_unused]] const RoundedSpec& spec,
                        [[maybe_unused]] const float* results, [[maybe_unused]] size_t count,
                        [[maybe_unused]] float* unscaled, [[maybe_unused]] float* scaled) {
#if DLSIM_HAS_CHUNK_ROWS
  AccumulateResults(spec, results, count, unscaled, scaled);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim {
namespace {

DLSIM_EXPORT(RoundOnTarget);
DLSIM_EXPORT(ScaleDownOnTarget);
DLSIM_EXPORT(ScaleUpOnTarget);
DLSIM_EXPORT(MeasureRoundedOnTarget);
DLSIM_EXPORT(AccumulateOnTarget);

// Returns whether dividing every finite result by the scale is exact in float32.
bool UnscalesExactly(const CodecSpec& spec, const Measurement& question) {
  const uint32_t bits = std::bit_cast<uint32_t>(std::fabs(question.scale));
  if ((bits & codec::kMantissaMask) != 0 || bits < codec::kImplicitBit) return false;
  const int k = static_cast<int>(bits >> 23) - 127;
  // All results are multiples of the smallest subnormal, or what would be it.
  const int exponent = std::ilogb(MinNormal(question.conversion.format));
  const int unit = exponent - question.conversion.format.mantissa_bits;
  const int largest = static_cast<int>(spec.plain_max_bits >> 23) - 127;
  return unit - k >= -149 && largest - k <= 127;
}

// Returns up to which magnitude the C of ValueRounder is finite, 0 for what it does not do.
uint32_t LimitOf(const CodecSpec& spec, Rounding rounding) {
  // With fewer bits to drop x + C leaves the binade of C.
  constexpr uint32_t kFewestDropped = 3;
  const bool supported = spec.gradual && spec.dropped_bits >= kFewestDropped;
  if (!supported || rounding == Rounding::kStochastic) return 0;
  return ((kMaxAdditionExponent + 1 - spec.dropped_bits) << 23) - 1;
}

uint32_t LargestScaled(const RoundedSpec& spec, const ChunkInputs& inputs) {
  return std::bit_cast<uint32_t>(inputs.absmax * std::fabs(spec.scale));
}

bool IsForRounder(const RoundedSpec& spec, const ChunkInputs& inputs) {
  return spec.limit_bits > 0 && LargestScaled(spec, inputs) <= spec.limit_bits;
}

bool IsDirected(Rounding rounding) {
  return rounding == Rounding::kTowardZero || rounding == Rounding::kTowardPositive ||
         rounding == Rounding::kTowardNegative;
}

// Returns whether a mode may turn any value, however small, into the smallest positive result.
bool RoundsAway(Rounding rounding) {
  return rounding == Rounding::kTowardPositive || rounding == Rounding::kTowardNegative ||
         rounding == Rounding::kStochastic;
}

constexpr float kFarFromOverflow = 0x1p126f;  // also if rounded up

// The results of a chunk, in whole rows: what is behind the last value is zero.
struct RoundedChunk {
  alignas(64) std::array<float, kChunkElements> results;
};

template <class Code>
void EncodeAndDecode(const Measurement& question, uint64_t first_index,
                     std::span<const float> values, std::span<float> results) {
  std::array<Code, kChunkElements> buffer;
  const std::span<Code> codes = std::span(buffer).first(values.size());
  EncodeArray({question.conversion, question.scale, question.random, first_index}, values, codes);
  DecodeArray(question.conversion.format, std::span<const Code>(codes), results);
}

void EncodeChunk(Measurement question, uint64_t first_index, std::span<const float> values,
                 RoundedChunk& chunk) {
  const std::span<float> results = std::span(chunk.results).first(values.size());
  question.conversion.overflow = Overflow::kInfinity;  // what saturates is clamped later
  if (CodeBits(question.conversion.format) <= 16) {
    EncodeAndDecode<uint16_t>(question, first_index, values, results);
  } else {
    EncodeAndDecode<uint32_t>(question, first_index, values, results);
  }
  const size_t padding = (kSumLanes - values.size() % kSumLanes) % kSumLanes;
  std::fill_n(chunk.results.begin() + static_cast<ptrdiff_t>(values.size()), padding, 0.0f);
}

// As EncodeChunk, of values that are scaled without multiplying, and results without the scale.
void EncodeUnscaled(Measurement question, uint64_t first_index, std::span<const float> values,
                    const RoundedSpec& spec, RoundedChunk& chunk) {
  std::array<float, kChunkElements> buffer;
  const std::span<float> scaled = std::span(buffer).first(values.size());
  DLSIM_DISPATCH(ScaleDownOnTarget)(spec, values.data(), values.size(), scaled.data());
  question.scale = 1;
  EncodeChunk(question, first_index, scaled, chunk);
  DLSIM_DISPATCH(ScaleUpOnTarget)(spec, chunk.results.data(), values.size());
}

}  // namespace

std::optional<RoundedSpec> MakeRoundedSpec(const CodecSpec& spec, const Measurement& question) {
  const Unscaling unscaling = MakeUnscaling(question.scale);
  if (!std::isfinite(question.scale) || !std::isfinite(unscaling.inverse)) return std::nullopt;
  RoundedSpec rounded;
  rounded.rounding = question.conversion.rounding;
  rounded.dropped_bits = spec.dropped_bits;
  rounded.min_normal_bits = Decode(spec, spec.min_normal_code);
  rounded.plain_min_bits = spec.plain_min_bits;
  rounded.max_bits = spec.plain_max_bits;
  rounded.past_max_bits = Decode(spec, spec.overflow_code);
  rounded.limit_bits = LimitOf(spec, rounded.rounding);
  rounded.scale = question.scale;
  rounded.inverse_scale = unscaling.inverse;
  rounded.exact_inverse = unscaling.of_magnitudes;
  rounded.unscales_exactly = UnscalesExactly(spec, question);
  rounded.flushes = spec.flush_below != 0;
  rounded.saturates = spec.saturates;
  return rounded;
}

std::optional<RoundedSpec> WithoutMultiplications(RoundedSpec spec) {
  const uint32_t bits = std::bit_cast<uint32_t>(spec.scale);
  const int k = static_cast<int>(bits >> 23) - 127;  // above 126 for negative scales
  const bool supported = spec.limit_bits > 0 || spec.rounding == Rounding::kStochastic;
  if (!supported || (bits & codec::kMantissaMask) != 0 || k < -126 || k >= 0) return std::nullopt;
  const int min_normal = static_cast<int>(spec.min_normal_bits >> 23);
  const int min_positive = min_normal - 23 + static_cast<int>(spec.dropped_bits);
  if (min_normal == 0 || min_positive >= 2) return std::nullopt;
  const uint32_t shift = static_cast<uint32_t>(-k) << 23;
  if (spec.max_bits + shift < codec::kInfinityBits) return std::nullopt;
  spec.min_normal_bits += shift;
  spec.plain_min_bits += shift;
  spec.max_bits = codec::kInfinityBits - 1;  // no value is beyond the largest result
  spec.rounded_product_bits = codec::kImplicitBit + shift;
  spec.scale = spec.inverse_scale = 1;
  spec.exact_inverse = 1;
  // Ties of products may be ties away from zero of values slightly closer to it.
  spec.unscales_exactly = spec.rounding == Rounding::kTowardZero;
  return spec;
}

std::optional<RoundedKernel> KernelFor(const RoundedSpec& spec, const ChunkInputs& inputs) {
  if (!inputs.finite) return std::nullopt;
  const float smallest = std::bit_cast<float>(inputs.smallest_less_one + 1) * std::fabs(spec.scale);
  RoundedKernel kernel;
  kernel.small = inputs.absmax == 0 || std::bit_cast<uint32_t>(smallest) < spec.plain_min_bits;
  if (spec.rounded_product_bits > 0) {
    const bool moderate = IsForRounder(spec, inputs) || (spec.rounding == Rounding::kStochastic &&
                                                         inputs.absmax < kFarFromOverflow);
    if (!kernel.small || !moderate) return std::nullopt;
  }
  // The error of a normal result is below the unit of the input's binade in the format, and a
  // multiple of the input's last bit. So is that of a small one, if it is not above the input.
  kernel.exact_errors = spec.unscales_exactly && (!kernel.small || !RoundsAway(spec.rounding));
  if (LargestScaled(spec, inputs) <= spec.max_bits) {
    kernel.results = RoundedResults::kFinite;
  } else if (!spec.saturates) {
    kernel.results = RoundedResults::kInfinite;
    kernel.exact_errors &= !IsDirected(spec.rounding);  // some values end at the largest result
  } else if (IsForRounder(spec, inputs) || !IsDirected(spec.rounding)) {
    kernel.results = RoundedResults::kSaturating;
    kernel.exact_errors = false;
  } else {
    // Encoding may end at the largest result without a sign of overflow.
    return std::nullopt;
  }
  return kernel;
}

TensorStats MeasureRounded(std::span<const float> values, uint64_t first_index,
                           const Measurement& question, const ChunkQuestion::Rounded& rounded,
                           const ChunkInputs& inputs, const AccumulatedChunk* sums) {
  DLSIM_CHECK(values.size() <= kChunkElements && inputs.finite);
  const RoundedSpec& spec = *rounded.spec;
  RoundedChunk chunk;
  float* const results = chunk.results.data();
  if (IsForRounder(spec, inputs)) {
    DLSIM_DISPATCH(RoundOnTarget)
    (rounded.kernel, spec, values.data(), values.size(), results);
  } else if (spec.rounded_product_bits > 0) {
    EncodeUnscaled(question, first_index, values, spec, chunk);
  } else {
    EncodeChunk(question, first_index, values, chunk);
  }
  if (sums != nullptr) {
    DLSIM_DISPATCH(AccumulateOnTarget)
    (spec, results, values.size(), sums->unscaled.data(), sums->scaled.data());
  }
  return DLSIM_DISPATCH(MeasureRoundedOnTarget)(rounded.kernel, spec, values.data(), results,
                                                values.size(), inputs);
}

}  // namespace dlsim
#endif  // HWY_ONCE
