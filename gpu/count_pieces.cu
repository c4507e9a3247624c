// SPDX-License-Identifier: Apache-2.0
// Counts values of any kind between any edges: one search and atomic additions to global memory for
// each.
#include "count_atomics.cuh"
#include "count_element.cuh"
#include "count_kernels.h"
#include "launch.h"
#include "load_value.cuh"

namespace dlsim::gpu {
namespace {

constexpr uint32_t kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    CountKernel(const Piece* pieces, const uint32_t* table_of_piece, DeviceEdges edges,
                CountTables tables) {
  const Piece piece = pieces[blockIdx.x];
  const uint32_t table = table_of_piece == nullptr ? piece.tensor : table_of_piece[blockIdx.x];
  ValueRange range;
  DispatchDType(piece.dtype, [&](auto dtype) {
    for (uint32_t i = threadIdx.x; i < piece.count; i += kThreads) {
      const uint32_t bits = BitCast<uint32_t>(LoadValue<decltype(dtype)::value>(piece, i));
      if (!HasBin(bits, range)) continue;
      UpdateLargest(bits, range);
      AddToTable(bits, edges, tables, table);
    }
  });
  AddRange(range, tables.heads[table]);
}

}  // namespace

CountEdges::CountEdges(const HistogramEdges& edges) : bits_(edges.bits().size()) {
  CheckCuda(
      cudaMemcpy(bits_.data(), edges.bits().data(), bits_.size_bytes(), cudaMemcpyHostToDevice),
      "cudaMemcpy");
  view_ = {bits_.data(), static_cast<uint32_t>(edges.bin_count())};
}

void LaunchCount(const Piece* pieces, const uint32_t* table_of_piece, uint32_t piece_count,
                 const DeviceEdges& edges, const CountTables& tables, Stream stream) {
  Launch("counting of pieces", CountKernel, {piece_count, kThreads}, stream, pieces, table_of_piece,
         edges, tables);
}

}  // namespace dlsim::gpu
