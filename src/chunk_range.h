// SPDX-License-Identifier: Apache-2.0
// The range of magnitudes of a chunk, which decides the thresholds that lie outside at once.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dlsim/codec.h"
#include "measure_element.h"

namespace dlsim {

// Elements that the first pass over a chunk fetches ahead.
inline constexpr size_t kEdgePrefetch = 1024;

// Most edges that are summed element by element, and most values below them that this pays for.
inline constexpr size_t kRareEdges = 16;
inline constexpr uint64_t kRareValues = 24;

// Edges from kNearBelow below a power of two to kNearAbove above it, as magnitude bits, are near
// it: those of formats with at least 9 bits of mantissa at scales 2^k.
inline constexpr uint32_t kNearBelow = 1 << 14;
inline constexpr uint32_t kNearAbove = 1;

// From how many near edges inside a chunk, and from how many values, counting by binades pays.
inline constexpr size_t kFewestNearEdges = 6;
inline constexpr size_t kFewestNearValues = 1024;

struct ChunkRange {
  uint64_t zeros = 0;
  uint64_t nan = 0;
  uint64_t inf = 0;
  uint32_t smallest = 0;      // nonzero magnitude bits; 0 or above `largest` if there are none
  uint32_t largest = 0;       // finite magnitude bits
  double sum_of_squares = 0;  // of the finite values
};

inline uint32_t MagnitudeBits(float value) {
  return std::bit_cast<uint32_t>(value) & ~codec::kSignBit;
}

inline ChunkRange RangeByElement(std::span<const float> values) {
  ChunkRange range;
  SumLanes sums{};
  uint32_t smallest_less_one = ~0u;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t magnitude = MagnitudeBits(values[i]);
    range.nan += magnitude > codec::kInfinityBits;
    range.inf += magnitude == codec::kInfinityBits;
    if (magnitude >= codec::kInfinityBits) continue;
    range.zeros += magnitude == 0;
    range.largest = std::max(range.largest, magnitude);
    smallest_less_one = std::min(smallest_less_one, magnitude - 1);
    AddSquare(values[i], i, sums);
  }
  range.smallest = smallest_less_one + 1;
  range.sum_of_squares = AddLanes(sums);
  return range;
}

}  // namespace dlsim
