// SPDX-License-Identifier: Apache-2.0
// Takes what is not empty out of tables: one block for each.
#include <utility>

#include "gpu/base/launch.h"
#include "gpu/count/count_atomics.cuh"
#include "gpu/count/count_kernels.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim::gpu {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;

__device__ uint64_t TakeSum(uint64_t& sum) {
  const uint64_t taken = sum;
  sum = 0;
  return taken;
}

__device__ void TakeRow(const CountTables& tables, uint64_t index, uint32_t key, CountRow& row) {
  row.key = key;
  row.count = TakeSum(tables.counts[index]);
  row.significands = TakeSum(tables.significands[index]);
  row.squares_low = TakeSum(tables.squares_low[index]);
  row.squares_high = TakeSum(tables.squares_high[index]);
}

__global__ void __launch_bounds__(kThreads)
    CompactKernel(CountTables tables, CountRows rows, CountAnswer* answers) {
  __shared__ uint32_t total;
  __shared__ uint64_t first_row;
  __shared__ uint32_t of_warps[kWarps];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint64_t begin = uint64_t{blockIdx.x} * tables.keys;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  uint32_t used = 0;
  for (uint32_t key = threadIdx.x; key < tables.keys; key += kThreads) {
    used += tables.counts[begin + key] != 0;
  }
  if (used > 0) atomicAdd(&total, used);
  __syncthreads();
  if (threadIdx.x == 0) {
    first_row = atomicAdd(reinterpret_cast<unsigned long long*>(rows.row_used),
                          static_cast<unsigned long long>(total));
    answers[blockIdx.x] = {first_row, total, tables.heads[blockIdx.x]};
    tables.heads[blockIdx.x] = {};
  }
  __syncthreads();
  uint64_t row = first_row;
  for (uint32_t first = 0; first < tables.keys; first += kThreads) {
    const uint32_t key = first + threadIdx.x;
    const bool is_used = key < tables.keys && tables.counts[begin + key] != 0;
    const uint32_t mask = __ballot_sync(~0u, is_used);
    if (lane == 0) of_warps[warp] = static_cast<uint32_t>(__popc(mask));
    __syncthreads();
    uint32_t before = static_cast<uint32_t>(__popc(mask & ((1u << lane) - 1))), all = 0;
    for (uint32_t other = 0; other < kWarps; ++other) {
      if (other < warp) before += of_warps[other];
      all += of_warps[other];
    }
    if (is_used) TakeRow(tables, begin + key, key, rows.rows[row + before]);
    row += all;
    __syncthreads();
  }
}

}  // namespace

void LaunchCompact(const CountTables& tables, uint32_t table_count, const CountRows& rows,
                   CountAnswer* answers, Stream stream) {
  Launch("compaction of counts", CompactKernel, {table_count, kThreads}, stream, tables, rows,
         answers);
}

void AddAnswer(const CountAnswer& answer, const CountRow* rows, uint32_t bin_count,
               HistogramSums& sums) {
  HistogramSums counted = {0, answer.head.zeros, answer.head.nan, answer.head.inf, {}};
  counted.elements = counted.zeros + counted.nan + counted.inf;
  for (uint32_t sign = 0; sign < 2; ++sign) counted.signs[sign].largest = answer.head.largest[sign];
  for (uint32_t i = 0; i < answer.row_count; ++i) {
    const CountRow& row = rows[i];
    const uint128_t squares = (uint128_t{row.squares_high} << kSquareShift) + row.squares_low;
    counted.signs[row.key / bin_count].bins.push_back(
        {static_cast<uint32_t>(row.key % bin_count), row.count, row.significands, squares});
    counted.elements += row.count;
  }
  sums.Merge(counted);
}

}  // namespace dlsim::gpu
