// SPDX-License-Identifier: Apache-2.0
// What one lane of a warp counts of its chunk, and how lanes and chunks are added.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "dlsim/host_device.h"
#include "dlsim/tensor_stats.h"
#include "measure_element.h"
#include "measure_values.cuh"
#include "unroll.h"

namespace dlsim::gpu {

// The counters of TensorStats for one lane and question.
struct LaneStats {
  uint32_t zeros = 0, nan = 0, inf = 0;
  uint32_t underflow = 0, subnormal = 0, overflow = 0, nonfinite_outputs = 0;
  float absmax = 0;
  double inputs = 0, underflows = 0, quantized = 0;

  DLSIM_HOST_DEVICE LaneSums sums() { return {inputs, underflows, quantized}; }
};

inline constexpr double kQuietNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Every NaN is the same, as in AddLanes.
DLSIM_HOST_DEVICE inline double CanonicalNan(double sum) { return sum != sum ? kQuietNan : sum; }

DLSIM_HOST_DEVICE inline void CanonicalNans(TensorStats& stats) {
  stats.sum_of_squares = CanonicalNan(stats.sum_of_squares);
  stats.underflow_sum_of_squares = CanonicalNan(stats.underflow_sum_of_squares);
  stats.quantized_sum_of_squares = CanonicalNan(stats.quantized_sum_of_squares);
}

// Adds the lanes of a warp pairwise, as AddLanes does; the result is lane 0's.
__device__ inline double AddLanesOfWarp(double sum) {
  DLSIM_UNROLL
  for (uint32_t width = kWarp / 2; width > 0; width /= 2) {
    sum += __shfl_down_sync(kAllLanes, sum, width);
  }
  return CanonicalNan(sum);
}

__device__ inline uint32_t AddCounts(uint32_t count) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kAllLanes, count);
#else
  for (uint32_t width = kWarp / 2; width > 0; width /= 2) {
    count += __shfl_xor_sync(kAllLanes, count, static_cast<int>(width));
  }
  return count;
#endif
}

// The largest of magnitude bits, which order as their values do.
__device__ inline uint32_t LargestBits(uint32_t bits) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kAllLanes, bits);
#else
  for (uint32_t width = kWarp / 2; width > 0; width /= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, bits, static_cast<int>(width));
    bits = other > bits ? other : bits;
  }
  return bits;
#endif
}

// Returns the result of a chunk, in lane 0.
__device__ inline TensorStats FinishChunk(const LaneStats& lane, uint32_t elements) {
  TensorStats stats;
  stats.elements = elements;
  stats.zeros = AddCounts(lane.zeros);
  stats.nan = AddCounts(lane.nan);
  stats.inf = AddCounts(lane.inf);
  stats.underflow = AddCounts(lane.underflow);
  stats.subnormal = AddCounts(lane.subnormal);
  stats.overflow = AddCounts(lane.overflow);
  stats.nonfinite_outputs = AddCounts(lane.nonfinite_outputs);
  stats.absmax = BitCast<float>(LargestBits(BitCast<uint32_t>(lane.absmax)));
  stats.sum_of_squares = AddLanesOfWarp(lane.inputs);
  stats.underflow_sum_of_squares = AddLanesOfWarp(lane.underflows);
  stats.quantized_sum_of_squares = AddLanesOfWarp(lane.quantized);
  return stats;
}

}  // namespace dlsim::gpu
