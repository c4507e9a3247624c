// SPDX-License-Identifier: Apache-2.0
// The measurement of one element and the order of sums: the definitions behind measure.h.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "dlsim/codec.h"
#include "dlsim/measure.h"

namespace dlsim {

// Where accumulation over micro-steps adds a chunk's results, in float32.
struct AccumulatedChunk {
  std::span<float> unscaled;  // the gradient of the step
  std::span<float> scaled;    // the same, still scaled: what an element-wise finite test sees
};

// Measures at most kChunkElements values on the calling thread; adds each result to `sums`, if any.
// `first_index` is the index of values[0] in the random stream.
TensorStats MeasureChunk(std::span<const float> values, uint64_t first_index,
                         const Measurement& question, const AccumulatedChunk* sums = nullptr);

// The same by the scalar reference alone: the definition that the kernels must equal.
TensorStats MeasureChunkReference(std::span<const float> values, uint64_t first_index,
                                  const Measurement& question);

// Returns the float64 sum of squares of a chunk in the order of measure.h.
double SumOfSquaresOfChunk(std::span<const float> values);

// The partial sums of a chunk, one per lane.
using SumLanes = std::array<double, kSumLanes>;

// The partial sums of one lane, wherever they are kept.
struct LaneSums {
  double& inputs;
  double& errors;
  double& underflows;
  double& quantized;
};

struct ChunkSums {
  alignas(64) SumLanes inputs{};
  alignas(64) SumLanes errors{};
  alignas(64) SumLanes underflows{};
  alignas(64) SumLanes quantized{};

  // The sums to which element i of the chunk adds.
  LaneSums Lane(size_t i) {
    const size_t lane = i % kSumLanes;
    return {inputs[lane], errors[lane], underflows[lane], quantized[lane]};
  }
};

// Adds the upper half of `kWidth` lanes to the lower half, and so on down to one lane.
template <size_t kWidth>
inline void AddHalves(SumLanes& lanes) {
  if constexpr (kWidth > 1) {
    for (size_t lane = 0; lane < kWidth / 2; ++lane) lanes[lane] += lanes[lane + kWidth / 2];
    AddHalves<kWidth / 2>(lanes);
  }
}

// Adds the lanes pairwise; the order is part of the contract in measure.h. Every NaN is the same:
// which one an addition of two keeps depends on the compiler.
inline double AddLanes(SumLanes lanes) {
  AddHalves<kSumLanes>(lanes);
  return std::isnan(lanes[0]) ? std::numeric_limits<double>::quiet_NaN() : lanes[0];
}

// Calls add(i, lane) for the elements of a chunk in order; written so that compilers vectorize it.
template <class Add>
inline void ForEachLane(size_t count, const Add& add) {
  size_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (size_t lane = 0; lane < kSumLanes; ++lane) add(i + lane, lane);
  }
  for (size_t lane = 0; i + lane < count; ++lane) add(i + lane, lane);
}

// The square of a float32 is exact in float64.
DLSIM_HOST_DEVICE inline void AddSquare(float value, double& sum) {
  const double wide = double{value};
  sum += wide * wide;
}

// Adds the square of an error, which is not exact: never fused, so that all machines agree.
DLSIM_HOST_DEVICE inline void AddErrorSquare(float input, float output, double inverse,
                                             double& sum) {
  const double unscaled = double{output} * inverse;
  const double error = unscaled - double{input};
  const double square = error * error;
  sum += square;
}

inline void AddSquare(float value, size_t i, SumLanes& lanes) {
  AddSquare(value, lanes[i % kSumLanes]);
}

// Fills in the sums of a chunk whose elements are all counted.
inline void AddSums(const ChunkSums& sums, TensorStats& stats) {
  stats.sum_of_squares = AddLanes(sums.inputs);
  stats.error_sum_of_squares = AddLanes(sums.errors);
  stats.underflow_sum_of_squares = AddLanes(sums.underflows);
  stats.quantized_sum_of_squares = AddLanes(sums.quantized);
}

// What undoes a loss scale: the float32 reciprocal that scalers multiply with, and for the error
// the reciprocal itself, of magnitudes.
struct Unscaling {
  float inverse = 1.0f;
  double of_magnitudes = 1.0;
};

DLSIM_HOST_DEVICE inline Unscaling MakeUnscaling(float scale) {
  const double magnitude = scale < 0 ? -double{scale} : double{scale};
  return {1.0f / scale, magnitude == 0 ? 0.0 : 1.0 / magnitude};
}

// What became of one element.
struct ElementResult {
  float scaled = 0;  // decoded, still scaled
  float unscaled = 0;
};

// Counts one element: the bits of the input and of its scaled value, and what encoding made of
// that. `Counters` has the counters of TensorStats and absmax.
template <class Counters>
DLSIM_HOST_DEVICE inline ElementResult MeasureElement(const CodecSpec& spec,
                                                      const Unscaling& unscaling, uint32_t bits,
                                                      uint32_t scaled_bits, EncodeResult result,
                                                      Counters& stats, const LaneSums& sums) {
  const uint32_t magnitude = bits & ~codec::kSignBit;
  const CodeClass output = Classify(spec, result.code);
  const float decoded = BitCast<float>(Decode(spec, result.code));
  const ElementResult element = {decoded, decoded * unscaling.inverse};
  stats.nonfinite_outputs += output == CodeClass::kInfinity || output == CodeClass::kNan ? 1 : 0;
  AddSquare(element.unscaled, sums.quantized);
  if (magnitude >= codec::kInfinityBits) {
    ++(magnitude == codec::kInfinityBits ? stats.inf : stats.nan);
    return element;
  }
  const float size = BitCast<float>(magnitude);
  AddSquare(size, sums.inputs);
  if (output != CodeClass::kInfinity && output != CodeClass::kNan) {
    const float result_size = BitCast<float>(BitCast<uint32_t>(decoded) & ~codec::kSignBit);
    AddErrorSquare(size, result_size, unscaling.of_magnitudes, sums.errors);
  }
  if (size > stats.absmax) stats.absmax = size;
  // Scaling alone may overflow float32: then encoding was given an infinity.
  const bool scaled_to_infinity = (scaled_bits & ~codec::kSignBit) == codec::kInfinityBits;
  stats.overflow += result.overflows || scaled_to_infinity ? 1 : 0;
  if (magnitude == 0) {
    ++stats.zeros;
  } else if (output == CodeClass::kZero) {
    ++stats.underflow;
    AddSquare(size, sums.underflows);
  } else {
    stats.subnormal += output == CodeClass::kSubnormal ? 1 : 0;
  }
  return element;
}

}  // namespace dlsim
