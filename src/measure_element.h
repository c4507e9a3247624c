// SPDX-License-Identifier: Apache-2.0
// The measurement of one element and the order of sums: the definitions behind measure.h.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "dlsim/codec.h"
#include "dlsim/measure.h"

namespace dlsim {

// The partial sums of a chunk, one per lane.
using SumLanes = std::array<double, kSumLanes>;

struct ChunkSums {
  alignas(64) SumLanes inputs{};
  alignas(64) SumLanes underflows{};
  alignas(64) SumLanes quantized{};
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

inline void AddSquare(float value, size_t i, SumLanes& lanes) {
  const double wide = value;
  lanes[i % kSumLanes] += wide * wide;
}

// Fills in the sums of a chunk whose elements are all counted.
inline void AddSums(const ChunkSums& sums, TensorStats& stats) {
  stats.sum_of_squares = AddLanes(sums.inputs);
  stats.underflow_sum_of_squares = AddLanes(sums.underflows);
  stats.quantized_sum_of_squares = AddLanes(sums.quantized);
}

// What became of one element.
struct ElementResult {
  float scaled = 0;  // decoded, still scaled
  float unscaled = 0;
};

// Counts element i of a chunk: the bits of the input and of its scaled value, and what encoding
// made of that.
inline ElementResult MeasureElement(const CodecSpec& spec, float inverse_scale, size_t i,
                                    uint32_t bits, uint32_t scaled_bits, EncodeResult result,
                                    TensorStats& stats, ChunkSums& sums) {
  const uint32_t magnitude = bits & ~codec::kSignBit;
  const CodeClass output = Classify(spec, result.code);
  const float decoded = std::bit_cast<float>(Decode(spec, result.code));
  const ElementResult element = {decoded, decoded * inverse_scale};
  stats.nonfinite_outputs += output == CodeClass::kInfinity || output == CodeClass::kNan;
  AddSquare(element.unscaled, i, sums.quantized);
  if (magnitude >= codec::kInfinityBits) {
    ++(magnitude == codec::kInfinityBits ? stats.inf : stats.nan);
    return element;
  }
  const float input = std::bit_cast<float>(bits);
  AddSquare(input, i, sums.inputs);
  stats.absmax = std::fmax(stats.absmax, std::fabs(input));
  // Scaling alone may overflow float32: then encoding was given an infinity.
  const bool scaled_to_infinity = (scaled_bits & ~codec::kSignBit) == codec::kInfinityBits;
  stats.overflow += result.overflows || scaled_to_infinity;
  if (magnitude == 0) {
    ++stats.zeros;
  } else if (output == CodeClass::kZero) {
    ++stats.underflow;
    AddSquare(input, i, sums.underflows);
  } else {
    stats.subnormal += output == CodeClass::kSubnormal;
  }
  return element;
}

}  // namespace dlsim
