// SPDX-License-Identifier: Apache-2.0
// The groups of a matrix that share scales, and the threads that work on one: a team.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/base/load_value.cuh"
#include "gpu/base/unroll.h"

namespace dlsim::gpu {

inline constexpr uint32_t kTeamBlock = 256;  // threads of a block, in teams of a power of two

// Groups of rows x columns elements side by side; the last of a line may be smaller.
struct MatrixGroups {
  uint64_t rows = 0, columns = 0;  // of the matrix
  uint64_t group_rows = 1, group_columns = 1;
  uint64_t across = 0, count = 0;  // groups in a line, and of the matrix
};

// The group that this thread's team works on, beyond the last if there is none.
template <uint32_t kTeam>
__device__ inline uint64_t GroupOfTeam() {
  return uint64_t{blockIdx.x} * (kTeamBlock / kTeam) + threadIdx.x / kTeam;
}

// Calls body(index in memory) for this thread's share of a group.
template <uint32_t kTeam, class Body>
__device__ inline void ForEachOfGroup(const MatrixGroups& groups, uint64_t group,
                                      const Body& body) {
  if (group >= groups.count) return;
  const uint64_t row = group / groups.across * groups.group_rows;
  const uint64_t column = group % groups.across * groups.group_columns;
  const uint64_t rows_left = groups.rows - row, columns_left = groups.columns - column;
  const uint64_t rows = rows_left < groups.group_rows ? rows_left : groups.group_rows;
  const uint64_t columns =
      columns_left < groups.group_columns ? columns_left : groups.group_columns;
  const uint64_t first = row * groups.columns + column;
  DLSIM_NO_UNROLL
  for (uint64_t i = threadIdx.x % kTeam; i < rows * columns; i += kTeam) {
    const uint64_t down = rows == 1 ? 0 : i / columns;
    body(first + down * groups.columns + (i - down * columns));
  }
}

// Returns the largest number that a thread of the team has, to all of them.
template <uint32_t kTeam>
__device__ inline uint32_t LargestOfTeam(uint32_t number) {
  constexpr uint32_t kLanes = kTeam < 32 ? kTeam : 32;
  DLSIM_UNROLL
  for (uint32_t step = kLanes / 2; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(~0u, number, static_cast<int>(step));
    number = other > number ? other : number;
  }
  if constexpr (kTeam == kTeamBlock) {
    __shared__ uint32_t of_block;
    if (threadIdx.x == 0) of_block = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) atomicMax(&of_block, number);
    __syncthreads();
    number = of_block;
  }
  return number;
}

// Values of any type in memory.
struct MatrixValues {
  const std::byte* values = nullptr;
  DType dtype = DType::kF32;
  float inverse_grad_scale = 1.0f;
};

// Calls body(index, float32 bits) for this thread's share of the values of a group.
template <uint32_t kTeam, class Body>
__device__ inline void ForEachValue(const MatrixGroups& groups, uint64_t group,
                                    const MatrixValues& matrix, const Body& body) {
  DispatchDType(matrix.dtype, [&](auto tag) {
    constexpr DType kDType = decltype(tag)::value;
    const auto* const elements =
        reinterpret_cast<const typename ElementOf<kDType>::Type*>(matrix.values);
    ForEachOfGroup<kTeam>(groups, group, [&](uint64_t i) {
      const uint32_t bits = BitCast<uint32_t>(ToFloat<kDType>(elements[i]));
      const float factor = matrix.inverse_grad_scale;
      body(i, factor == 1.0f ? bits : ScaleBits(bits, factor));
    });
  });
}

}  // namespace dlsim::gpu
