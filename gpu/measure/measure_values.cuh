// SPDX-License-Identifier: Apache-2.0
// What a thread block measures, as float32, and in which order its lanes take the elements.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "dlsim/measure.h"
#include "gpu/base/load_value.cuh"
#include "gpu/base/piece.h"
#include "gpu/base/unroll.h"

namespace dlsim::gpu {

// The lanes of a warp are the lanes of the sums, and each warp of a block takes one chunk.
inline constexpr uint32_t kWarp = 32;
static_assert(kWarp == kSumLanes);
inline constexpr uint32_t kChunk = kChunkElements;
inline constexpr uint32_t kChunksPerBlock = kBlockElements / kChunkElements;
inline constexpr uint32_t kMeasureThreads = kWarp * kChunksPerBlock;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFF;

// How values come to be.
enum class Source {
  kFloats,  // a piece of float32 that is not unscaled: the case that has to be fast
  kAny,
};

// Returns the elements of the longest of some pieces that are there.
DLSIM_HOST_DEVICE inline uint32_t LongestCount(const Piece* pieces, uint32_t count) {
  uint32_t longest = 0;
  for (uint32_t p = 0; p < count; ++p) {
    const uint32_t length = pieces[p].values == nullptr ? 0 : pieces[p].count;
    longest = length > longest ? length : longest;
  }
  return longest;
}

// Loads elements first, first + 32, ... of a piece, which are all there: as many as `values` has.
template <Source kSource, uint32_t kRows>
__device__ inline void LoadRows(const Piece& piece, uint32_t first, float (&values)[kRows]) {
  if constexpr (kSource == Source::kFloats) {
    const float* at = reinterpret_cast<const float*>(piece.values) + first;
    DLSIM_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) values[r] = __ldg(at + r * kWarp);
  } else {
    DispatchDType(piece.dtype, [&](auto dtype) {
      for (uint32_t r = 0; r < kRows; ++r) {
        values[r] = LoadValue<decltype(dtype)::value>(piece, first + r * kWarp);
      }
    });
  }
}

// When rows are loaded.
enum class Loads {
  kAtOnce,  // when they are needed
  kAhead,   // while the rows before are worked on; takes twice the registers and code
};

// Calls body(value, i) for the elements of one lane in [begin, end), in order; `begin` is the first
// of them. Loads kRows elements at a time, so that enough bytes are on their way.
template <Source kSource, uint32_t kRows, Loads kLoads = Loads::kAtOnce, class Body>
__device__ inline void ForElements(const Piece& from, uint32_t begin, uint32_t end,
                                   const Body& body) {
  constexpr uint32_t kStep = kRows * kWarp;
  uint32_t i = begin;
  const auto has_rows = [&](uint32_t first) { return first + (kStep - kWarp) < end; };
  const auto work = [&](const float(&values)[kRows]) {
    DLSIM_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) body(values[r], i + r * kWarp);
    i += kStep;
  };
  float values[kRows] = {};
  if constexpr (kLoads == Loads::kAhead) {
    float others[kRows] = {};
    if (has_rows(i)) LoadRows<kSource>(from, i, values);
    while (has_rows(i)) {
      if (has_rows(i + kStep)) LoadRows<kSource>(from, i + kStep, others);
      work(values);
      if (!has_rows(i)) break;
      if (has_rows(i + kStep)) LoadRows<kSource>(from, i + kStep, values);
      work(others);
    }
  } else {
    for (; has_rows(i);) {
      LoadRows<kSource>(from, i, values);
      work(values);
    }
  }
  for (; i < end; i += kWarp) {
    float value[1] = {};
    LoadRows<kSource>(from, i, value);
    body(value[0], i);
  }
}

template <Source kSource>
struct SourceTag {
  static constexpr Source value = kSource;
};

// Calls body(SourceTag); all threads of a block take one way.
template <class Body>
DLSIM_HOST_DEVICE inline void DispatchSource(const Piece& piece, const Body& body) {
  if (piece.dtype == DType::kF32 && piece.inverse_grad_scale == 1.0f) {
    return body(SourceTag<Source::kFloats>());
  }
  body(SourceTag<Source::kAny>());
}

}  // namespace dlsim::gpu
