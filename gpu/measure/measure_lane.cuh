// SPDX-License-Identifier: Apache-2.0
// What one lane of a warp counts of its chunk, and how lanes and chunks are added.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "dlsim/host_device.h"
#include "dlsim/tensor_stats.h"
#include "gpu/base/unroll.h"
#include "gpu/measure/measure_values.cuh"
#include "measure_element.h"

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

// What a thread block found out of its chunks, for some questions; in shared memory.
template <uint32_t kQuestions>
struct ChunkResults {
  static constexpr uint32_t kSums = 3, kCounts = 8;
  double sums[kQuestions][kSums][kChunksPerBlock];
  uint32_t counts[kQuestions][kCounts][kChunksPerBlock];  // the last is absmax as bits
};

// Adds the lanes of a chunk; `lane_index` is the caller's. All warps of a block must store, those
// without elements, too.
template <uint32_t kQuestions>
__device__ inline void StoreChunk(const LaneStats& lane, uint32_t lane_index, uint32_t question,
                                  uint32_t chunk, ChunkResults<kQuestions>& results) {
  const uint32_t counts[] = {AddCounts(lane.zeros),
                             AddCounts(lane.nan),
                             AddCounts(lane.inf),
                             AddCounts(lane.underflow),
                             AddCounts(lane.subnormal),
                             AddCounts(lane.overflow),
                             AddCounts(lane.nonfinite_outputs),
                             LargestBits(BitCast<uint32_t>(lane.absmax))};
  const double sums[] = {AddLanesOfWarp(lane.inputs), AddLanesOfWarp(lane.underflows),
                         AddLanesOfWarp(lane.quantized)};
  if (lane_index != 0) return;
  DLSIM_UNROLL
  for (uint32_t i = 0; i < 8; ++i) results.counts[question][i][chunk] = counts[i];
  DLSIM_UNROLL
  for (uint32_t i = 0; i < 3; ++i) results.sums[question][i][chunk] = sums[i];
}

// Adds the chunks of a question in order, a lane for each of the numbers: for one warp, after a
// barrier.
template <uint32_t kQuestions>
__device__ inline void StoreResult(const ChunkResults<kQuestions>& results, uint32_t lane_index,
                                   uint32_t question, uint32_t elements, TensorStats& stats) {
  if (lane_index < 3) {
    double sum = 0;
    DLSIM_UNROLL
    for (uint32_t c = 0; c < kChunksPerBlock; ++c) sum += results.sums[question][lane_index][c];
    sum = CanonicalNan(sum);
    if (lane_index == 0) stats.sum_of_squares = sum;
    if (lane_index == 1) stats.underflow_sum_of_squares = sum;
    if (lane_index == 2) stats.quantized_sum_of_squares = sum;
  } else if (lane_index < 11) {
    const uint32_t i = lane_index - 3;
    uint32_t sum = 0, largest = 0;
    DLSIM_UNROLL
    for (uint32_t c = 0; c < kChunksPerBlock; ++c) {
      const uint32_t count = results.counts[question][i][c];
      sum += count;
      largest = count > largest ? count : largest;
    }
    if (i == 0) stats.zeros = sum;
    if (i == 1) stats.nan = sum;
    if (i == 2) stats.inf = sum;
    if (i == 3) stats.underflow = sum;
    if (i == 4) stats.subnormal = sum;
    if (i == 5) stats.overflow = sum;
    if (i == 6) stats.nonfinite_outputs = sum;
    if (i == 7) stats.absmax = BitCast<float>(largest);
  } else if (lane_index == 11) {
    stats.elements = elements;
  }
}

}  // namespace dlsim::gpu
