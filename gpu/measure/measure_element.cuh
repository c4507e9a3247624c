// SPDX-License-Identifier: Apache-2.0
// Measures single elements, in three ways: by the definition; by float additions, for formats with
// subnormals and all rounding modes but the stochastic one; and in a short form of that for inputs
// that are finite, with finite results to nearest even. Tests compare them on the host.
#pragma once

#include <cmath>
#include <cstdint>

#include "dlsim/codec.h"
#include "gpu/measure/measure_lane.cuh"
#include "gpu/measure/measure_question.cuh"

namespace dlsim::gpu {

inline constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();

// The scale of one question for one tensor.
struct Scaling : Unscaling {
  float scale = 1.0f;
};

DLSIM_HOST_DEVICE inline Scaling MakeScaling(float scale) { return {MakeUnscaling(scale), scale}; }

// Counts an element by the definition.
template <Rounding kRounding>
DLSIM_HOST_DEVICE inline ElementResult CountElement(const CodecSpec& spec, const Scaling& scaling,
                                                    float value, uint32_t random,
                                                    LaneStats& stats) {
  const uint32_t scaled = BitCast<uint32_t>(value * scaling.scale);
  const EncodeResult result = EncodeWith<kRounding>(spec, scaled, random);
  return MeasureElement(spec, scaling, BitCast<uint32_t>(value), scaled, result, stats,
                        stats.sums());
}

// A magnitude that was rounded to nearest even.
struct RoundedFloat {
  float value;
  float ulp;  // of results in the binade of the magnitude
};

// Rounds by x + C - C, where C = 2^dropped * max(2^exponent of x, min_normal): x + C lies in
// [C, 2C), whose unit is the last bit that the result keeps, and C is an even multiple of it, so
// that ties go to even. The products with `unit` are exact: fused, they cost nothing.
DLSIM_HOST_DEVICE inline RoundedFloat RoundBySum(const FloatRounding& floats, float magnitude) {
  const float power = BitCast<float>(BitCast<uint32_t>(magnitude) & codec::kInfinityBits);
  const float exponent = fmaxf(power, floats.min_normal);
  const float sum = fmaf(exponent, floats.unit, magnitude);
  return {fmaf(-exponent, floats.unit, sum), exponent * floats.unit * 0x1p-23f};
}

// Rounds a magnitude in another mode.
template <Rounding kRounding>
DLSIM_HOST_DEVICE inline float RoundFloat(const FloatRounding& floats, float magnitude,
                                          bool negative) {
  const auto [value, ulp] = RoundBySum(floats, magnitude);
  if constexpr (kRounding == Rounding::kNearestEven) return value;
  if constexpr (kRounding == Rounding::kNearestAway) {
    return magnitude - value == 0.5f * ulp ? value + ulp : value;
  }
  const float down = value > magnitude ? value - ulp : value;
  if constexpr (kRounding == Rounding::kTowardZero) return down;
  const float up = value < magnitude ? value + ulp : value;
  return negative == (kRounding == Rounding::kTowardPositive) ? down : up;
}

// The square of a float32 is exact in float64: fused or not, the sum is the same.
DLSIM_HOST_DEVICE inline void AddSquareFused(float value, double& sum) {
  const double wide = double{value};
  sum = fma(wide, wide, sum);
}

// Counts an element by float additions: the twin of MeasureElement.
template <Rounding kRounding>
DLSIM_HOST_DEVICE inline void CountByFloats(const FloatRounding& floats, const Scaling& scaling,
                                            float value, LaneStats& stats) {
  const float magnitude = fabsf(value), scaled = value * scaling.scale, size = fabsf(scaled);
  const bool negative = scaled < 0, is_number = size <= kFloatInfinity;
  float result = RoundFloat<kRounding>(floats, fminf(size, floats.limit), negative);
  constexpr bool kOneSide =
      kRounding == Rounding::kTowardPositive || kRounding == Rounding::kTowardNegative;
  const bool direction_stops = kOneSide ? negative == (kRounding == Rounding::kTowardPositive)
                                        : kRounding == Rounding::kTowardZero;
  const bool stops = direction_stops && !floats.saturates && size < kFloatInfinity;
  const bool beyond = result > floats.max;
  result = beyond ? (stops ? floats.max : floats.overflow) : result;
  result = result < floats.flush_below ? 0.0f : result;
  result = is_number ? result : size;
  if (!(result < kFloatInfinity)) ++stats.nonfinite_outputs;
  AddSquareFused(result * scaling.inverse, stats.quantized);
  if (!(magnitude < kFloatInfinity)) {
    ++(magnitude == kFloatInfinity ? stats.inf : stats.nan);
    return;
  }
  AddSquareFused(magnitude, stats.inputs);
  if (result < kFloatInfinity) {
    AddErrorSquare(magnitude, result, scaling.of_magnitudes, stats.errors);
  }
  stats.absmax = fmaxf(stats.absmax, magnitude);
  if (is_number && beyond && !stops) ++stats.overflow;
  if (magnitude == 0) {
    ++stats.zeros;
  } else if (result == 0) {
    ++stats.underflow;
    AddSquareFused(magnitude, stats.underflows);
  } else if (result < floats.min_normal) {
    ++stats.subnormal;
  }
}

// Returns whether CountByFloats was right for all elements of a lane, which it counted.
DLSIM_HOST_DEVICE inline bool WasRightByFloats(const FloatRounding& floats, const Scaling& scaling,
                                               const LaneStats& stats) {
  return floats.clamps || (stats.inf == 0 && stats.absmax * fabsf(scaling.scale) <= floats.limit);
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
  double errors = 0, underflows = 0, quantized = 0;
  uint32_t zeros = 0;
  float normals = 0;  // a count

  template <bool kFlushes>
  DLSIM_HOST_DEVICE void Add(const FloatRounding& floats, const Scaling& scaling, float value,
                             double wide) {
    float result = RoundBySum(floats, fabsf(value) * scaling.scale).value;
    const bool is_normal = result >= floats.min_normal;
    normals += is_normal ? 1.0f : 0.0f;
    if constexpr (kFlushes) result = result < floats.flush_below ? 0.0f : result;
    if (result == 0) {
      ++zeros;
      underflows = fma(wide, wide, underflows);
    }
    AddErrorSquare(fabsf(value), result, scaling.of_magnitudes, errors);
    const double unscaled = double{result * scaling.inverse};
    quantized = fma(unscaled, unscaled, quantized);
  }
};

// Returns whether the short form was right for all elements of a lane: a sum of squares of float32
// is finite exactly if they are.
DLSIM_HOST_DEVICE inline bool WasPlain(const PlainInputs& inputs, const FloatRounding& floats,
                                       const Scaling& scaling) {
  return inputs.sum < kInfinity && inputs.absmax * scaling.scale <= floats.plain_max;
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
  stats.errors = results.errors;
  stats.underflows = results.underflows;
  stats.quantized = results.quantized;
  return stats;
}

}  // namespace dlsim::gpu
