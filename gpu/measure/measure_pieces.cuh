// SPDX-License-Identifier: Apache-2.0
// Kernels that measure the pieces of a launch, chunk by chunk.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/base/unroll.h"
#include "gpu/measure/measure_element.cuh"
#include "gpu/measure/measure_pieces.h"

namespace dlsim::gpu {

// The chunk that a warp measures.
struct WarpChunk {
  const Piece* pieces = nullptr;  // the block's, or one for each part of it
  uint32_t begin = 0, end = 0;    // in the block
  uint32_t warp = 0, lane = 0;

  DLSIM_HOST_DEVICE uint32_t length() const { return end - begin; }
  DLSIM_HOST_DEVICE const Piece& piece() const { return *pieces; }
};

// `count` is that of the longest piece.
__device__ inline WarpChunk MakeWarpChunk(const Piece* pieces, uint32_t count) {
  WarpChunk chunk;
  chunk.pieces = pieces;
  chunk.warp = threadIdx.x / kWarp;
  chunk.lane = threadIdx.x % kWarp;
  const uint32_t begin = chunk.warp * kChunk, end = begin + kChunk;
  chunk.begin = begin < count ? begin : count;
  chunk.end = end < count ? end : count;
  return chunk;
}

// Measures a chunk by the definition.
template <Source kSource, Rounding kRounding>
__device__ inline LaneStats MeasureByDefinition(const KernelQuestion& question,
                                                const Scaling& scaling, const WarpChunk& chunk) {
  LaneStats stats;
  const RandomStream random = question.RandomOf(chunk.piece());
  const uint64_t first_index = chunk.piece().first_index;
  ForElements<kSource, 1>(
      chunk.piece(), chunk.begin + chunk.lane, chunk.end, [&](float value, uint32_t i) {
        const uint32_t bits =
            kRounding == Rounding::kStochastic ? RandomBits(random, first_index + i) : 0;
        CountElement<kRounding>(question.spec, scaling, value, bits, stats);
      });
  return stats;
}

// Measures a chunk by float additions, or by the definition where those are not right.
template <Source kSource, Rounding kRounding>
__device__ inline LaneStats MeasureByFloats(const KernelQuestion& question, const Scaling& scaling,
                                            const WarpChunk& chunk) {
  LaneStats stats;
  ForElements<kSource, 4>(chunk.piece(), chunk.begin + chunk.lane, chunk.end,
                          [&](float value, uint32_t) {
                            CountByFloats<kRounding>(question.floats, scaling, value, stats);
                          });
  const bool right = WasRightByFloats(question.floats, scaling, stats);
  if (__all_sync(kAllLanes, right)) return stats;
  return MeasureByDefinition<kSource, kRounding>(question, scaling, chunk);
}

// One question, any rounding mode and format.
template <Rounding kRounding>
__global__ void __launch_bounds__(kMeasureThreads, 2)
    MeasureKernel(PieceLaunch launch, KernelQuestion question) {
  __shared__ ChunkResults<1> results;
  const uint32_t count = launch.CountOf(blockIdx.x);
  const WarpChunk chunk = MakeWarpChunk(launch.pieces + blockIdx.x, count);
  const Scaling scaling = MakeScaling(question.ScaleOf(chunk.piece()));
  LaneStats lane;
  DispatchSource(chunk.piece(), [&](auto source) {
    constexpr Source kSource = decltype(source)::value;
    if constexpr (kRounding != Rounding::kStochastic) {
      if (question.floats.applies) {
        lane = MeasureByFloats<kSource, kRounding>(question, scaling, chunk);
        return;
      }
    }
    lane = MeasureByDefinition<kSource, kRounding>(question, scaling, chunk);
  });
  StoreChunk(lane, chunk.lane, 0, chunk.warp, results);
  __syncthreads();
  if (chunk.warp != 0) return;
  StoreResult(results, chunk.lane, 0, count, *launch.ResultOf(blockIdx.x, question.index));
}

// Questions that one launch answers.
template <uint32_t kQuestions>
struct QuestionSet {
  KernelQuestion of[kQuestions];
};

// Rows of a tile: loads that a warp has on their way while it works on as many others.
template <uint32_t kQuestions>
inline constexpr uint32_t kTileRows = kQuestions == 1 ? 8 : 4;

// Measures a chunk for several questions in the short form, and once more for those for which that
// was not right.
template <Source kSource, uint32_t kQuestions, bool kFlushes>
__device__ inline void MeasurePlain(const QuestionSet<kQuestions>& questions,
                                    const WarpChunk& chunk, ChunkResults<kQuestions>& stats) {
  PlainInputs inputs;
  PlainResults results[kQuestions];
  Scaling sizes[kQuestions];
  for (uint32_t q = 0; q < kQuestions; ++q) {
    sizes[q] = MakeScaling(fabsf(questions.of[q].ScaleOf(chunk.piece())));
  }
  // The rest, less than a tile, is counted by the definition.
  constexpr uint32_t kRows = kTileRows<kQuestions>;
  const uint32_t tiles_end = chunk.end - chunk.length() % (kRows * kWarp);
  constexpr bool kAhead = kQuestions == 1 && kSource == Source::kFloats;
  ForElements<kSource, kRows, kAhead ? Loads::kAhead : Loads::kAtOnce>(
      chunk.piece(), chunk.begin + chunk.lane, tiles_end, [&](float value, uint32_t) {
        const double wide = inputs.Add(value);
        DLSIM_UNROLL
        for (uint32_t q = 0; q < kQuestions; ++q) {
          results[q].template Add<kFlushes>(questions.of[q].floats, sizes[q], value, wide);
        }
      });
  uint32_t again = 0;  // questions for which that was not right
  DLSIM_UNROLL
  for (uint32_t q = 0; q < kQuestions; ++q) {
    const KernelQuestion& question = questions.of[q];
    if (!__all_sync(kAllLanes, WasPlain(inputs, question.floats, sizes[q]))) {
      again |= 1u << q;
      continue;
    }
    const Scaling scaling = MakeScaling(question.ScaleOf(chunk.piece()));
    LaneStats lane = FinishPlain(inputs, results[q], (tiles_end - chunk.begin) / kWarp);
    ForElements<kSource, 1>(
        chunk.piece(), tiles_end + chunk.lane, chunk.end, [&](float value, uint32_t) {
          CountElement<Rounding::kNearestEven>(question.spec, scaling, value, 0, lane);
        });
    StoreChunk(lane, chunk.lane, q, chunk.warp, stats);
  }
  DLSIM_NO_UNROLL
  for (uint32_t q = 0; q < kQuestions; ++q) {
    if ((again >> q & 1) == 0) continue;
    const KernelQuestion& question = questions.of[q];
    const Scaling scaling = MakeScaling(question.ScaleOf(chunk.piece()));
    const LaneStats lane =
        MeasureByFloats<kSource, Rounding::kNearestEven>(question, scaling, chunk);
    StoreChunk(lane, chunk.lane, q, chunk.warp, stats);
  }
}

// Several questions to nearest even.
template <uint32_t kQuestions, bool kFlushes>
__global__ void __launch_bounds__(kMeasureThreads, 2)
    MeasurePlainKernel(PieceLaunch launch, QuestionSet<kQuestions> questions) {
  __shared__ ChunkResults<kQuestions> stats;
  const uint32_t count = launch.CountOf(blockIdx.x);
  const WarpChunk chunk = MakeWarpChunk(launch.pieces + blockIdx.x, count);
  DispatchSource(chunk.piece(), [&](auto source) {
    MeasurePlain<decltype(source)::value, kQuestions, kFlushes>(questions, chunk, stats);
  });
  __syncthreads();
  DLSIM_UNROLL
  for (uint32_t q = 0; q < kQuestions; ++q) {
    if (chunk.warp != q) continue;
    StoreResult(stats, chunk.lane, q, count, *launch.ResultOf(blockIdx.x, questions.of[q].index));
  }
}

}  // namespace dlsim::gpu
