// SPDX-License-Identifier: Apache-2.0
// What counting in shared memory does to one value, and how sums are recovered, for the host and
// the device alike.
//
// A cell holds three words of 32 bits, as shared memory adds no wider ones atomically. With d the
// distance of a mantissa from the center of its rank, |d| < 2^21.5, they sum up d * d modulo 2^32;
// d * d >> 25, with the count in the upper 7 bits; and d. The second word says to within
// count * 2^25 <= 2^32 what the first one is modulo 2^32 of, so that up to 127 values lose nothing.
#pragma once

#include <cstdint>

#include "dlsim/host_device.h"
#include "gpu/count/window_plan.h"

namespace dlsim::gpu {

inline constexpr int kCellCountShift = 25;
inline constexpr uint32_t kMostInCell = 127;

struct CellWords {
  uint32_t squares_low = 0;
  uint32_t squares_high = 0;  // and the count
  uint32_t distances = 0;     // modulo 2^32
};

// Returns what a value adds to its cell.
DLSIM_HOST_DEVICE inline CellWords WordsOf(int32_t distance) {
  const uint32_t d = static_cast<uint32_t>(distance);
  constexpr uint32_t kOne = 1u << kCellCountShift;
#ifdef __CUDA_ARCH__
  int32_t high;  // so that the compiler takes one instruction, not two
  asm("mul.hi.s32 %0, %1, %2;" : "=r"(high) : "r"(distance * 128), "r"(distance));
#else
  const int64_t high = int64_t{distance * 128} * distance >> 32;
#endif
  return {d * d, static_cast<uint32_t>(high) + kOne, d};
}

// The sums of the distances of a cell, or of several.
struct CellSums {
  uint32_t count = 0;
  int64_t distances = 0;
  uint64_t squares = 0;
};

DLSIM_HOST_DEVICE inline void AddCell(const CellWords& words, CellSums& sums) {
  const uint32_t high = words.squares_high & ((1u << kCellCountShift) - 1);
  const uint32_t rest = words.squares_low - (high << kCellCountShift);
  sums.count += words.squares_high >> kCellCountShift;
  sums.distances += static_cast<int32_t>(words.distances);
  sums.squares += (uint64_t{high} << kCellCountShift) + rest;
}

// What a table holds of the same values.
struct SignificandSums {
  uint64_t significands = 0;
  uint64_t squares = 0;
};

// Of at most 2^15 values around the center of a rank.
DLSIM_HOST_DEVICE inline SignificandSums AroundCentre(const CellSums& sums, uint32_t center) {
  const uint64_t c = center | 1u << 23;
  const uint64_t distances = static_cast<uint64_t>(sums.distances);
  return {sums.count * c + distances, sums.count * c * c + 2 * c * distances + sums.squares};
}

// A window of binades, beginning with `low`, a power of two. Its exponent is at most 191, so that
// no value that is not finite lies in it.
struct Window {
  static constexpr uint32_t kBinades = 64;
  static constexpr uint32_t kMostExponent = 255 - kBinades;
  static constexpr uint32_t kOutside = 0x60000000;  // bits that bits - low has only outside
  uint32_t low = 0;

  // The window for values that lie mostly at or below the exponent `largest`.
  DLSIM_HOST_DEVICE static Window Below(uint32_t largest) {
    constexpr uint32_t kBelow = kBinades - 3;
    const uint32_t exponent = largest > kBelow ? largest - kBelow : 1;
    return {(exponent < kMostExponent ? exponent : kMostExponent) << 23};
  }
  DLSIM_HOST_DEVICE bool Has(uint32_t bits) const { return ((bits - low) & kOutside) == 0; }
};

// Where a value is counted, found with one word of WindowPlan::cells: a distance from the center of
// a rank, above 9 bits for its slot.
struct SlotPlace {
  uint32_t packed = 0;

  DLSIM_HOST_DEVICE static uint32_t CellOf(uint32_t bits) {
    return bits >> WindowPlan::kCellShift & (WindowPlan::kCells - 1);
  }
  DLSIM_HOST_DEVICE static SlotPlace Of(uint32_t bits, uint32_t cell) {
    return {bits * 512 + cell};
  }

  // Whether the value, which is `relative` after the beginning of a window, has a slot there.
  DLSIM_HOST_DEVICE bool IsIn(uint32_t relative) const {
    return ((packed & WindowPlan::kNoSlot) | (relative & Window::kOutside)) == 0;
  }
  DLSIM_HOST_DEVICE uint32_t slot() const { return packed & 3; }
  DLSIM_HOST_DEVICE int32_t distance() const { return static_cast<int32_t>(packed) >> 9; }
};

// Returns the rank of a mantissa.
DLSIM_HOST_DEVICE inline uint32_t RankOf(const uint32_t* phases, uint32_t mantissa) {
  uint32_t rank = 0;
  for (uint32_t step = WindowPlan::kRanks / 2; step > 0; step /= 2) {
    if (phases[rank + step - 1] <= mantissa) rank += step;
  }
  return rank;
}

}  // namespace dlsim::gpu
