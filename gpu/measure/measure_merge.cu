// SPDX-License-Identifier: Apache-2.0
// Adds the results of pieces to those of tensors, in order: one warp per tensor and question.
#include <cstddef>
#include <cstdint>

#include "gpu/base/launch.h"
#include "gpu/base/unroll.h"
#include "gpu/measure/measure_kernels.h"
#include "gpu/measure/measure_lane.cuh"

namespace dlsim::gpu {
namespace {

struct MergeLaunch {
  const Piece* pieces = nullptr;
  uint32_t piece_count = 0;
  uint32_t tensor_count = 0;
  const TensorStats* of_pieces = nullptr;
  TensorStats* of_tensors = nullptr;
};

// Returns the first piece of a tensor or of a later one; pieces are in the order of tensors.
__device__ uint32_t FirstPieceOf(const MergeLaunch& launch, uint32_t tensor) {
  uint32_t low = 0, high = launch.piece_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (launch.pieces[middle].tensor < tensor) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ uint64_t AddWide(uint64_t count) {
  for (uint32_t width = kWarp / 2; width > 0; width /= 2) {
    count +=
        __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(count), static_cast<int>(width));
  }
  return count;
}

// Adds the sums of the lanes' pieces one after another.
__device__ void AddSumsInOrder(const TensorStats& piece, double (&sums)[kLaneSums]) {
  DLSIM_UNROLL
  for (int from = 0; from < static_cast<int>(kWarp); ++from) {
    ForEachLaneSum([&](uint32_t i, auto, auto of_stats) {
      sums[i] += __shfl_sync(kAllLanes, piece.*of_stats, from);
    });
  }
}

// Exact counters can be added in any order.
__device__ void AddCounters(const TensorStats& piece, TensorStats& lane) {
  lane.elements += piece.elements;
  ForEachLaneCounter([&](uint32_t, auto, auto of_stats) { lane.*of_stats += piece.*of_stats; });
  lane.absmax = piece.absmax > lane.absmax ? piece.absmax : lane.absmax;  // never NaN
}

__device__ TensorStats AddLanesOf(const TensorStats& lane, const double (&sums)[kLaneSums]) {
  TensorStats total;
  total.elements = AddWide(lane.elements);
  ForEachLaneCounter(
      [&](uint32_t, auto, auto of_stats) { total.*of_stats = AddWide(lane.*of_stats); });
  total.absmax = BitCast<float>(LargestBits(BitCast<uint32_t>(lane.absmax)));
  ForEachLaneSum([&](uint32_t i, auto, auto of_stats) { total.*of_stats = CanonicalNan(sums[i]); });
  return total;
}

// Block (question * tensor_count + tensor).
__global__ void __launch_bounds__(kWarp) MergeKernel(MergeLaunch launch) {
  const uint32_t tensor = blockIdx.x % launch.tensor_count;
  const uint32_t question = blockIdx.x / launch.tensor_count;
  const TensorStats* results =
      launch.of_pieces + static_cast<size_t>(question) * launch.piece_count;
  const uint32_t first = FirstPieceOf(launch, tensor), end = FirstPieceOf(launch, tensor + 1);
  const auto load = [&](uint32_t piece) { return piece < end ? results[piece] : TensorStats(); };
  TensorStats lane;
  double sums[kLaneSums] = {};
  TensorStats next = load(first + threadIdx.x);
  for (uint32_t begin = first; begin < end; begin += kWarp) {
    const TensorStats piece = next;
    next = load(begin + kWarp + threadIdx.x);  // on its way while this one is added
    AddCounters(piece, lane);
    AddSumsInOrder(piece, sums);
  }
  const TensorStats total = AddLanesOf(lane, sums);
  if (threadIdx.x == 0) launch.of_tensors[blockIdx.x] = total;
}

}  // namespace

void LaunchMerge(const Piece* pieces, uint32_t piece_count, const TensorStats* of_pieces,
                 size_t question_count, uint32_t tensor_count, TensorStats* of_tensors,
                 Stream stream) {
  const MergeLaunch launch = {pieces, piece_count, tensor_count, of_pieces, of_tensors};
  Launch("MergeKernel", MergeKernel, {question_count * tensor_count, kWarp}, stream, launch);
}

}  // namespace dlsim::gpu
