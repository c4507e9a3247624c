// SPDX-License-Identifier: Apache-2.0
// Measures single elements, in two ways: by the definition, and in a short form for those that are
// finite, with finite results to nearest even. Tests compare the two on the host.
#pragma once

#include <cmath>
#include <cstdint>

#include "dlsim/codec.h"
#include "measure_lane.cuh"
#include "measure_question.cuh"

namespace dlsim::gpu {

// The scale of one question for one tensor.
struct Scaling {
  float scale = 1.0f;
  float inverse = 1.0f;
};

DLSIM_HOST_DEVICE inline Scaling MakeScaling(float scale) { return {scale, 1.0f / scale}; }

// Counts an element by the definition.
template <Rounding kRounding>
DLSIM_HOST_DEVICE inline ElementResult CountElement(const CodecSpec& spec, const Scaling& scaling,
                                                    float value, uint32_t random,
                                                    LaneStats& stats) {
  const uint32_t scaled = BitCast<uint32_t>(value * scaling.scale);
  const EncodeResult result = EncodeWith<kRounding>(spec, scaled, random);
  return MeasureElement(spec, scaling.inverse, BitCast<uint32_t>(value), scaled, result, stats,
                        stats.sums());
}

// What the short form finds out of the inputs of a lane, for all questions.
struct PlainInputs {
  double sum = 0;
  float absmax = 0;
  float zeros = 0;  // a count; comparing to a float and adding it takes the fewest instructions

  // Returns the square's root to add elsewhere.
  DLSIM_HOST_DEVICE double Add(float value) {
    const double wide = double{value};
    sum = fma(wide, wide, sum);
    absmax = fmaxf(absmax, fabsf(value));
    zeros += value == 0 ? 1.0f : 0.0f;
    return wide;
  }
};

// What it finds out of the results of one question.
struct PlainResults {
  double underflows = 0, quantized = 0;
  uint32_t zeros = 0;
  float normals = 0;  // a count

  // Rounds by x + C - C, where C = 2^dropped * max(2^exponent of x, min_normal): x + C lies in
  // [C, 2C), whose unit is the last bit that the result keeps, and C is an even multiple of it, so
  // that ties go to even. The products with `unit` are exact: fused, they cost nothing.
  template <bool kFlushes>
  DLSIM_HOST_DEVICE void Add(const PlainRounding& plain, const Scaling& scaling, float value,
                             double wide) {
    const float scaled = fabsf(value) * scaling.scale;
    const float power = BitCast<float>(BitCast<uint32_t>(scaled) & codec::kInfinityBits);
    const float exponent = fmaxf(power, plain.min_normal);
    const float sum = fmaf(exponent, plain.unit, scaled);
    float result = fmaf(-exponent, plain.unit, sum);
    const bool is_normal = result >= plain.min_normal;
    normals += is_normal ? 1.0f : 0.0f;
    if constexpr (kFlushes) result = result < plain.flush_below ? 0.0f : result;
    if (result == 0) {
      ++zeros;
      underflows = fma(wide, wide, underflows);
    }
    const double unscaled = double{result * scaling.inverse};
    quantized = fma(unscaled, unscaled, quantized);
  }
};

// Returns whether the short form was right for all elements of a lane: a sum of squares of float32
// is finite exactly if they are.
DLSIM_HOST_DEVICE inline bool WasPlain(const PlainInputs& inputs, const PlainRounding& plain,
                                       const Scaling& scaling) {
  return inputs.sum < kInfinity && inputs.absmax * scaling.scale <= plain.max;
}

// Returns the counters of `elements` elements that were all plain.
DLSIM_HOST_DEVICE inline LaneStats FinishPlain(const PlainInputs& inputs,
                                               const PlainResults& results, uint32_t elements) {
  LaneStats stats;
  stats.zeros = static_cast<uint32_t>(inputs.zeros);
  stats.underflow = results.zeros - stats.zeros;
  stats.subnormal = elements - static_cast<uint32_t>(results.normals) - results.zeros;
  stats.absmax = inputs.absmax;
  stats.inputs = inputs.sum;
  stats.underflows = results.underflows;
  stats.quantized = results.quantized;
  return stats;
}

}  // namespace dlsim::gpu
