// SPDX-License-Identifier: Apache-2.0
// What counting does to one value, for the host and the device alike.
#pragma once

#include <cstdint>

#include "dlsim/codec.h"
#include "dlsim/histogram.h"
#include "gpu/count/count_tables.h"

namespace dlsim::gpu {

// Significand of histogram.h, for the device.
DLSIM_HOST_DEVICE inline uint32_t SignificandOf(uint32_t magnitude) {
  const uint32_t implicit = magnitude >> 23 == 0 ? 0 : 1u << 23;
  return (magnitude & codec::kMantissaMask) | implicit;
}

// Returns the bin of a nonzero finite magnitude, for any edges.
DLSIM_HOST_DEVICE inline uint32_t BinOf(const DeviceEdges& edges, uint32_t magnitude) {
  uint32_t low = 0, high = edges.bin_count;  // bits[low] <= magnitude < bits[high]
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (edges.bits[middle] <= magnitude) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// What is counted of values that have no bin, and the largest of the others by sign.
struct ValueRange {
  uint32_t zeros = 0, nan = 0, inf = 0;
  uint32_t largest[2] = {0, 0};
};

// Returns whether a value has a bin, and counts it if it has none.
DLSIM_HOST_DEVICE inline bool HasBin(uint32_t bits, ValueRange& range) {
  const uint32_t magnitude = bits & ~codec::kSignBit;
  range.zeros += magnitude == 0;
  range.inf += magnitude == codec::kInfinityBits;
  range.nan += magnitude > codec::kInfinityBits;
  return magnitude != 0 && magnitude < codec::kInfinityBits;
}

DLSIM_HOST_DEVICE inline void UpdateLargest(uint32_t bits, ValueRange& range) {
  const uint32_t magnitude = bits & ~codec::kSignBit;
  if (bits == magnitude) {  // no index: registers have none
    range.largest[0] = magnitude > range.largest[0] ? magnitude : range.largest[0];
  } else {
    range.largest[1] = magnitude > range.largest[1] ? magnitude : range.largest[1];
  }
}

}  // namespace dlsim::gpu
