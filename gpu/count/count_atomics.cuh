// SPDX-License-Identifier: Apache-2.0
// Atomic additions to the tables of count_tables.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/count/count_element.cuh"
#include "gpu/count/count_tables.h"

namespace dlsim::gpu {

// Adds to global memory. If it knows which memory it is, the compiler needs no code for the other
// kinds.
__device__ inline void AddToGlobal(uint64_t* sum, uint64_t term) {
#ifdef __CUDA_ARCH__
  asm volatile("red.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(sum)), "l"(term)
               : "memory");
#else
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(term));
#endif
}

// Adds `count` values whose squares sum up to less than 2^64.
__device__ inline void AddSums(const CountTables& tables, uint64_t index, uint64_t count,
                               uint64_t significands, uint64_t squares) {
  AddToGlobal(tables.counts + index, count);
  AddToGlobal(tables.significands + index, significands);
  AddToGlobal(tables.squares_low + index, squares & kSquareMask);
  AddToGlobal(tables.squares_high + index, squares >> kSquareShift);
}

// Adds a nonzero finite value `count` times, at most 2^15.
__device__ inline void AddToTable(uint32_t bits, const DeviceEdges& edges,
                                  const CountTables& tables, uint32_t table, uint32_t count = 1) {
  const uint32_t magnitude = bits & ~codec::kSignBit;
  const uint32_t key = (bits >> 31) * edges.bin_count + BinOf(edges, magnitude);
  const uint64_t significand = SignificandOf(magnitude);
  AddSums(tables, uint64_t{table} * tables.keys + key, count, count * significand,
          count * significand * significand);
}

// What each thread found of its values that have no sums.
__device__ inline void AddRange(const ValueRange& range, CountHead& head) {
  if (range.zeros != 0) AddToGlobal(&head.zeros, range.zeros);
  if (range.nan != 0) AddToGlobal(&head.nan, range.nan);
  if (range.inf != 0) AddToGlobal(&head.inf, range.inf);
  if (range.largest[0] != 0) atomicMax(&head.largest[0], range.largest[0]);
  if (range.largest[1] != 0) atomicMax(&head.largest[1], range.largest[1]);
}

}  // namespace dlsim::gpu
