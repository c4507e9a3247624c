// SPDX-License-Identifier: Apache-2.0
// The counters and sums of docs/numerics.md, section 4, element by element: what measuring equals.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "dlsim/codec.h"
#include "dlsim/measure.h"
#include "src/measure/measure_chunk.h"

namespace dlsim {

// Measures at most kChunkElements values; `first_index` is that of values[0] in the random stream.
inline TensorStats MeasureChunkReference(std::span<const float> values, uint64_t first_index,
                                         const ArrayConversion& question) {
  const CodecSpec spec = MakeCodecSpec(question.conversion);
  const double of_scale = std::fabs(double{question.scale});
  const double of_magnitudes = of_scale == 0 ? 0 : 1 / of_scale;
  TensorStats stats;
  SumLanes inputs{}, errors{}, underflows{}, quantized{};
  stats.elements = values.size();
  const auto add = [](double value, double& sum) { sum += value * value; };
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = values[i], scaled = value * question.scale;
    const size_t lane = i % kSumLanes;
    const EncodeResult result =
        Encode(spec, question.conversion.rounding, std::bit_cast<uint32_t>(scaled),
               RandomBits(question.random, first_index + i));
    const CodeClass output = Classify(spec, result.code);
    const float decoded = std::bit_cast<float>(Decode(spec, result.code));
    const bool output_is_finite = output != CodeClass::kInfinity && output != CodeClass::kNan;
    stats.nonfinite_outputs += output_is_finite ? 0 : 1;
    add(decoded * (1.0f / question.scale), quantized[lane]);
    if (!std::isfinite(value)) {
      ++(std::isnan(value) ? stats.nan : stats.inf);
      continue;
    }
    add(value, inputs[lane]);
    if (output_is_finite) {
      add(std::fabs(double{decoded}) * of_magnitudes - std::fabs(double{value}), errors[lane]);
    }
    stats.absmax = std::fmax(stats.absmax, std::fabs(value));
    // Scaling alone may overflow float32: then encoding was given an infinity.
    stats.overflow += result.overflows || std::isinf(scaled) ? 1 : 0;
    if (value == 0) {
      ++stats.zeros;
    } else if (output == CodeClass::kZero) {
      ++stats.underflow;
      add(value, underflows[lane]);
    } else {
      stats.subnormal += output == CodeClass::kSubnormal ? 1 : 0;
    }
  }
  stats.sum_of_squares = AddLanes(inputs);
  stats.error_sum_of_squares = AddLanes(errors);
  stats.underflow_sum_of_squares = AddLanes(underflows);
  stats.quantized_sum_of_squares = AddLanes(quantized);
  return stats;
}

}  // namespace dlsim
