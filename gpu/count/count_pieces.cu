// SPDX-License-Identifier: Apache-2.0
// Counts values of any kind between any edges: one search and atomic additions to global memory for
// each.
#include <optional>
#include <span>

#include "gpu/base/launch.h"
#include "gpu/base/load_value.cuh"
#include "gpu/count/count_atomics.cuh"
#include "gpu/count/count_element.cuh"
#include "gpu/count/count_kernels.h"

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

uint32_t MultiprocessorCount() {
  int device = 0, count = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
            "cudaDeviceGetAttribute");
  return static_cast<uint32_t>(count);
}

}  // namespace

CountEdges::CountEdges(const HistogramEdges& edges) : bits_(edges.bits().size()) {
  Upload(edges.bits(), bits_);
  view_.bits = bits_.data();
  view_.bin_count = static_cast<uint32_t>(edges.bin_count());
  const std::optional<HostWindowPlan> made = MakeWindowPlan(edges);
  if (!made || !WindowFits()) return;
  plan_ = DeviceBuffer<WindowPlan>(1);
  plan_bins_ = DeviceBuffer<uint32_t>(made->bins.size());
  Upload(std::span<const WindowPlan>(&made->plan, 1), plan_);
  Upload(std::span<const uint32_t>(made->bins), plan_bins_);
  view_.plan = plan_.data();
  view_.plan_bins = plan_bins_.data();
  view_.blocks = MultiprocessorCount();
}

void LaunchCount(const Piece* pieces, const uint32_t* table_of_piece, uint32_t piece_count,
                 const DeviceEdges& edges, const CountTables& tables, Stream stream) {
  if (edges.plan != nullptr) {
    return LaunchCountWindow(pieces, table_of_piece, piece_count, edges, tables, stream);
  }
  Launch("counting of pieces", CountKernel, {piece_count, kThreads}, stream, pieces, table_of_piece,
         edges, tables);
}

}  // namespace dlsim::gpu
