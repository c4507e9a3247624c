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
#include "src/measure/measure_element.h"

namespace dlsim::gpu {

// The counters and sums of TensorStats for one lane and question.
struct LaneStats {
  uint32_t zeros = 0, nan = 0, inf = 0;
  uint32_t underflow = 0, subnormal = 0, overflow = 0, nonfinite_outputs = 0;
  float absmax = 0;
  double inputs = 0, errors = 0, underflows = 0, quantized = 0;

  DLSIM_HOST_DEVICE LaneSums sums() { return {inputs, errors, underflows, quantized}; }
};

// Call body(i, member of LaneStats, member of TensorStats) for each counter and each sum: what is
// added, stored and merged is listed here alone.
inline constexpr uint32_t kLaneCounters = 7, kLaneSums = 4;
template <class Body>
DLSIM_HOST_DEVICE inline void ForEachLaneCounter(const Body& body) {
  body(0, &LaneStats::zeros, &TensorStats::zeros);
  body(1, &LaneStats::nan, &TensorStats::nan);
  body(2, &LaneStats::inf, &TensorStats::inf);
  body(3, &LaneStats::underflow, &TensorStats::underflow);
  body(4, &LaneStats::subnormal, &TensorStats::subnormal);
  body(5, &LaneStats::overflow, &TensorStats::overflow);
  body(6, &LaneStats::nonfinite_outputs, &TensorStats::nonfinite_outputs);
}
template <class Body>
DLSIM_HOST_DEVICE inline void ForEachLaneSum(const Body& body) {
  body(0, &LaneStats::inputs, &TensorStats::sum_of_squares);
  body(1, &LaneStats::errors, &TensorStats::error_sum_of_squares);
  body(2, &LaneStats::underflows, &TensorStats::underflow_sum_of_squares);
  body(3, &LaneStats::quantized, &TensorStats::quantized_sum_of_squares);
}

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
  double sums[kQuestions][kLaneSums][kChunksPerBlock];
  uint32_t counts[kQuestions][kLaneCounters + 1][kChunksPerBlock];  // the last is absmax as bits
};

// Adds the lanes of a chunk; `lane_index` is the caller's. All warps of a block must store, those
// without elements, too.
template <uint32_t kQuestions>
__device__ inline void StoreChunk(const LaneStats& lane, uint32_t lane_index, uint32_t question,
                                  uint32_t chunk, ChunkResults<kQuestions>& results) {
  uint32_t counts[kLaneCounters + 1];
  double sums[kLaneSums];
  ForEachLaneCounter([&](uint32_t i, auto of_lane, auto) { counts[i] = AddCounts(lane.*of_lane); });
  counts[kLaneCounters] = LargestBits(BitCast<uint32_t>(lane.absmax));
  ForEachLaneSum([&](uint32_t i, auto of_lane, auto) { sums[i] = AddLanesOfWarp(lane.*of_lane); });
  if (lane_index != 0) return;
  DLSIM_UNROLL
  for (uint32_t i = 0; i <= kLaneCounters; ++i) results.counts[question][i][chunk] = counts[i];
  DLSIM_UNROLL
  for (uint32_t i = 0; i < kLaneSums; ++i) results.sums[question][i][chunk] = sums[i];
}

// Adds the chunks of a question in order, a lane for each of the numbers: for one warp, after a
// barrier.
template <uint32_t kQuestions>
__device__ inline void StoreResult(const ChunkResults<kQuestions>& results, uint32_t lane_index,
                                   uint32_t question, uint32_t elements, TensorStats& stats) {
  static_assert(kLaneSums + kLaneCounters + 2 <= kWarp);
  if (lane_index < kLaneSums) {
    double sum = 0;
    DLSIM_UNROLL
    for (uint32_t c = 0; c < kChunksPerBlock; ++c) sum += results.sums[question][lane_index][c];
    sum = CanonicalNan(sum);
    ForEachLaneSum([&](uint32_t of, auto, auto of_stats) {
      if (lane_index == of) stats.*of_stats = sum;
    });
  } else if (lane_index <= kLaneSums + kLaneCounters) {
    const uint32_t i = lane_index - kLaneSums;
    uint32_t sum = 0, largest = 0;
    DLSIM_UNROLL
    for (uint32_t c = 0; c < kChunksPerBlock; ++c) {
      const uint32_t count = results.counts[question][i][c];
      sum += count;
      largest = count > largest ? count : largest;
    }
    ForEachLaneCounter([&](uint32_t of, auto, auto of_stats) {
      if (i == of) stats.*of_stats = sum;
    });
    if (i == kLaneCounters) stats.absmax = BitCast<float>(largest);
  } else if (lane_index == kLaneSums + kLaneCounters + 1) {
    stats.elements = elements;
  }
}

}  // namespace dlsim::gpu
