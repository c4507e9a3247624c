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
#include "src/measure/measure_rounded-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

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

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim {
namespace {

HWY_EXPORT(MeasureRoundedOnTarget);

// Returns the largest magnitude that does not overflow where results saturate: of values away from
// which, or toward which, a directed mode rounds.
uint32_t SaturationLimit(const CodecSpec& spec, Rounding rounding, bool away) {
  const uint32_t unit = uint32_t{1} << spec.dropped_bits;
  if (rounding == Rounding::kNearestAway) return spec.plain_max_bits + unit / 2 - 1;
  return spec.plain_max_bits + (away ? 0 : unit - 1);
}

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

template <class Code>
void QuantizeBy(const Measurement& question, uint64_t first_index, std::span<const float> values,
                std::span<float> results) {
  std::array<Code, kChunkElements> buffer;
  const std::span<Code> codes = std::span(buffer).first(values.size());
  EncodeArray({question.conversion, question.scale, question.random, first_index}, values, codes);
  DecodeArray(question.conversion.format, std::span<const Code>(codes), results);
}

}  // namespace

std::optional<RoundedSpec> MakeRoundedSpec(const CodecSpec& spec, const Measurement& question) {
  const Unscaling unscaling = MakeUnscaling(question.scale);
  if (!std::isfinite(question.scale) || !std::isfinite(unscaling.inverse)) return std::nullopt;
  const Rounding rounding = question.conversion.rounding;
  RoundedSpec rounded;
  rounded.min_normal_bits = Decode(spec, spec.min_normal_code);
  rounded.plain_min_bits = spec.plain_min_bits;
  rounded.max_bits = spec.plain_max_bits;
  rounded.positive_limit_bits =
      SaturationLimit(spec, rounding, rounding == Rounding::kTowardPositive);
  rounded.negative_limit_bits =
      SaturationLimit(spec, rounding, rounding == Rounding::kTowardNegative);
  rounded.scale = question.scale;
  rounded.inverse_scale = std::fabs(unscaling.inverse);
  rounded.exact_inverse = unscaling.of_magnitudes;
  rounded.unscales_exactly = UnscalesExactly(spec, question);
  rounded.saturates = spec.saturates;
  rounded.has_limits = rounding != Rounding::kStochastic && rounding != Rounding::kNearestEven;
  return rounded;
}

std::optional<RoundedKernel> KernelFor(const RoundedSpec& spec, const ChunkInputs& inputs) {
  if (!inputs.finite) return std::nullopt;
  const float scale = std::fabs(spec.scale);
  const float smallest = std::bit_cast<float>(inputs.smallest_less_one + 1) * scale;
  RoundedKernel kernel;
  kernel.small = inputs.absmax == 0 || std::bit_cast<uint32_t>(smallest) < spec.plain_min_bits;
  if (std::bit_cast<uint32_t>(inputs.absmax * scale) <= spec.max_bits) {
    kernel.results = spec.unscales_exactly ? RoundedResults::kExact : RoundedResults::kFinite;
    return kernel;
  }
  if (spec.saturates && !spec.has_limits) return std::nullopt;
  kernel.results = spec.saturates ? RoundedResults::kSaturating : RoundedResults::kInfinite;
  return kernel;
}

TensorStats MeasureRounded(std::span<const float> values, uint64_t first_index,
                           const Measurement& question, const RoundedSpec& spec,
                           const RoundedKernel& kernel, const ChunkInputs& inputs) {
  DLSIM_CHECK(values.size() <= kChunkElements && inputs.finite);
  alignas(64) std::array<float, kChunkElements> buffer;
  const std::span<float> results = std::span(buffer).first(values.size());
  QuantizeChunk(values, first_index, question, results);
  const size_t end = (values.size() + kSumLanes - 1) / kSumLanes * kSumLanes;
  std::fill(buffer.begin() + static_cast<ptrdiff_t>(values.size()),
            buffer.begin() + static_cast<ptrdiff_t>(end), 0.0f);
  return HWY_DYNAMIC_DISPATCH(MeasureRoundedOnTarget)(kernel, spec, values.data(), buffer.data(),
                                                      values.size(), inputs);
}

void QuantizeChunk(std::span<const float> values, uint64_t first_index, const Measurement& question,
                   std::span<float> results) {
  if (CodeBits(question.conversion.format) <= 16) {
    QuantizeBy<uint16_t>(question, first_index, values, results);
  } else {
    QuantizeBy<uint32_t>(question, first_index, values, results);
  }
}

}  // namespace dlsim
#endif  // HWY_ONCE
