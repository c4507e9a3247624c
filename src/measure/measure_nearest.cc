// SPDX-License-Identifier: Apache-2.0
#include "src/measure/measure_nearest.h"

#include <bit>
#include <cmath>
#include <limits>

#include "src/base/check.h"
#include "src/measure/measure_chunk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/measure/measure_nearest.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/codec/dispatch.h"
#include "src/measure/measure_nearest-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

ChunkInputs MeasureInputsOnTarget(const float* values, size_t count) {
  return MeasureInputsOf(values, count);
}

size_t CountBelowOnTarget(const float* values, size_t count, uint32_t magnitude) {
  return CountBelowOf(values, count, magnitude);
}

TensorStats MeasureNearestOnTarget([[maybe_unused]] const NearestKernel& kernel,
                                   [[maybe_unused]] const NearestSpec& spec,
                                   [[maybe_unused]] const float* values,
                                   [[maybe_unused]] size_t count,
                                   [[maybe_unused]] const ChunkInputs& inputs) {
#if DLSIM_HAS_CHUNK_ROWS
  return FunctionOf(kernel)(spec, values, count, inputs);
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

DLSIM_EXPORT(MeasureInputsOnTarget);
DLSIM_EXPORT(CountBelowOnTarget);
DLSIM_EXPORT(MeasureNearestOnTarget);

// Returns what becomes of a chunk whose results are zero: the error is the value itself.
TensorStats AllUnderflow(const ChunkInputs& inputs, uint64_t elements) {
  TensorStats stats = inputs.Stats(elements);
  stats.underflow = elements - inputs.zeros;
  stats.underflow_sum_of_squares = stats.error_sum_of_squares = inputs.sum_of_squares;
  return stats;
}

TensorStats AllOverflow(const NearestSpec& nearest, const ChunkInputs& inputs, uint64_t elements) {
  TensorStats stats = inputs.Stats(elements);
  stats.overflow = stats.nonfinite_outputs = elements - inputs.zeros;
  stats.quantized_sum_of_squares = std::isnan(nearest.overflow_result)
                                       ? std::numeric_limits<double>::quiet_NaN()
                                       : std::numeric_limits<double>::infinity();
  return stats;
}

}  // namespace

std::optional<TensorStats> AnswerFromExtremes(const NearestSpec& nearest, const ChunkInputs& inputs,
                                              uint64_t elements) {
  if (!inputs.finite || inputs.absmax == 0) return std::nullopt;
  const uint32_t largest = std::bit_cast<uint32_t>(inputs.absmax * nearest.scale);
  const uint32_t beyond_all = nearest.max_bits | codec::kMantissaMask;  // all results' binades
  if (!nearest.saturates && SmallestScaledLessOne(nearest, inputs) >= beyond_all) {
    return AllOverflow(nearest, inputs, elements);
  }
  const int half = HalfSmallestExponent(nearest);
  if (half > 0 && largest <= static_cast<uint32_t>(half) << 23) {
    return AllUnderflow(inputs, elements);
  }
  return std::nullopt;
}

ChunkInputs MeasureInputs(std::span<const float> values) {
  DLSIM_CHECK(values.size() <= kChunkElements);
  return DLSIM_DISPATCH(MeasureInputsOnTarget)(values.data(), values.size());
}

size_t CountBelow(std::span<const float> values, uint32_t magnitude) {
  DLSIM_CHECK(values.size() <= kChunkElements);
  return DLSIM_DISPATCH(CountBelowOnTarget)(values.data(), values.size(), magnitude);
}

TensorStats MeasureNearest(std::span<const float> values, const ChunkQuestion::Nearest& nearest,
                           const ChunkInputs& inputs) {
  DLSIM_CHECK(values.size() <= kChunkElements && inputs.finite);
  return DLSIM_DISPATCH(MeasureNearestOnTarget)(nearest.kernel, *nearest.spec, values.data(),
                                                values.size(), inputs);
}

}  // namespace dlsim
#endif  // HWY_ONCE
