// SPDX-License-Identifier: Apache-2.0
// The kernel that tabulates, and its launcher.
#include <cuda_runtime.h>

#include <algorithm>

#include "gpu/base/cuda.h"
#include "gpu/device/cuda_device.h"
#include "gpu/tabulate/tabulate_body.h"

namespace dlsim::gpu {
namespace {

constexpr const char* kCall = "dlsim::gpu::Tabulate";

// Binades of a window: what most samples have. Devices with less shared memory have fewer.
constexpr uint32_t kMostBinades = 22;

// The thread that runs this is one of a block.
struct ThreadOfBlock {
  OfThread& counts;

  template <class Body>
  __device__ void operator()(const Body& body) const {
    body(threadIdx.x, counts);
    __syncthreads();
  }
};

__global__ void __launch_bounds__(kTabulateThreads) TabulateKernel(TabulateJob job) {
  extern __shared__ uint32_t words[];
  OfThread counts;
  TabulateBlock(job, blockIdx.x, BlockSums(words, job.binades), ThreadOfBlock{counts});
}

int AttributeOf(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  CheckCuda(cudaGetDevice(&device), kCall);
  CheckCuda(cudaDeviceGetAttribute(&value, attribute, device), kCall);
  return value;
}

uint32_t BytesOf(uint32_t binades) { return BlockSums::Words(binades) * sizeof(uint32_t); }

}  // namespace

void LaunchTabulate(const Piece* pieces, uint32_t piece_count, float scale, TableSums* tables,
                    Stream stream) {
  TabulateJob job;
  job.pieces = pieces;
  job.piece_count = piece_count;
  job.scale = scale;
  job.tables = reinterpret_cast<uint64_t*>(tables);
  const auto shared = static_cast<uint32_t>(AttributeOf(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  job.binades = kMostBinades;
  while (job.binades > 1 && BytesOf(job.binades) > shared) --job.binades;
  const auto processors = static_cast<uint32_t>(AttributeOf(cudaDevAttrMultiProcessorCount));
  job.blocks = std::min(piece_count, processors);
  CheckCuda(cudaFuncSetAttribute(TabulateKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(BytesOf(job.binades))),
            kCall);
  Launch(kCall, TabulateKernel, {job.blocks, kTabulateThreads, BytesOf(job.binades)}, stream, job);
}

}  // namespace dlsim::gpu
