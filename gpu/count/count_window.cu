// SPDX-License-Identifier: Apache-2.0
// Counts values between edges that repeat from binade to binade, in shared memory.
#include "gpu/base/launch.h"
#include "gpu/count/count_kernels.h"
#include "gpu/count/window_block.cuh"

namespace dlsim::gpu {
namespace {

__device__ void FillShared(const WindowArguments& arguments) {
  uint32_t* words = Words();
  for (uint32_t i = threadIdx.x; i < WindowLayout::kWords; i += kWindowThreads) words[i] = 0;
  __syncthreads();
  const WindowPlan& plan = *arguments.edges.plan;
  for (uint32_t i = threadIdx.x; i < WindowPlan::kCells * 32; i += kWindowThreads) {
    words[WindowLayout::kParts + i] = plan.cells[i / 32];
  }
  if (threadIdx.x < WindowPlan::kRanks) {
    words[WindowLayout::kPhases + threadIdx.x] = plan.phases[threadIdx.x];
    words[WindowLayout::kCentres + threadIdx.x] = plan.centers[threadIdx.x];
    words[WindowLayout::kCodes + threadIdx.x] = plan.codes[threadIdx.x];
  }
  if (threadIdx.x == 0) {
    *reinterpret_cast<WindowArguments*>(words + WindowLayout::kArguments) = arguments;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kWindowThreads, 1) CountWindowKernel(WindowArguments arguments) {
  FillShared(arguments);
  const uint64_t piece_count = arguments.piece_count;
  const uint32_t begin = static_cast<uint32_t>(blockIdx.x * piece_count / gridDim.x);
  const uint32_t end = static_cast<uint32_t>((blockIdx.x + 1) * piece_count / gridDim.x);
  WindowBlock block;
  uint32_t table = 0;
  for (uint32_t p = begin; p < end; ++p) {
    const Piece piece = arguments.pieces[p];
    const uint32_t of_piece =
        arguments.table_of_piece == nullptr ? piece.tensor : arguments.table_of_piece[p];
    if (p == begin || of_piece != table) {
      if (p != begin) block.EndTensor();
      block.BeginTensor(of_piece);
      table = of_piece;
    }
    if (piece.count > 0) block.CountPiece(piece);
  }
  if (begin < end) block.EndTensor();
}

}  // namespace

bool WindowFits() {
  int device = 0, bytes = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
            "cudaDeviceGetAttribute");
  if (static_cast<size_t>(bytes) < 4 * WindowLayout::kWords) return false;
  CheckCuda(cudaFuncSetAttribute(CountWindowKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(4 * WindowLayout::kWords)),
            "cudaFuncSetAttribute");
  return true;
}

void LaunchCountWindow(const Piece* pieces, const uint32_t* table_of_piece, uint32_t piece_count,
                       const DeviceEdges& edges, const CountTables& tables, Stream stream) {
  const WindowArguments arguments = {pieces, table_of_piece, piece_count, edges, tables};
  const uint32_t blocks = piece_count < edges.blocks ? piece_count : edges.blocks;
  Launch("counting of pieces", CountWindowKernel,
         {blocks, kWindowThreads, 4 * WindowLayout::kWords}, stream, arguments);
}

}  // namespace dlsim::gpu
