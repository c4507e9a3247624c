// SPDX-License-Identifier: Apache-2.0
// The emulated CUDA runtime that runs the kernels in tests.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "check_cuda.h"
#include "device_buffer.h"
#include "emulation.h"
#include "launch.h"
#include "shared_memory.cuh"

namespace dlsim::gpu {
namespace {

__global__ void __launch_bounds__(512) ReverseKernel(uint32_t* values) {
  uint32_t* const shared = DynamicShared<uint32_t>();
  shared[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

TEST(Emulation, ThreadsMeetAtBarriers) {
  for (const auto order : {emulation::ThreadOrder::kAscending, emulation::ThreadOrder::kDescending,
                           emulation::ThreadOrder::kShuffled}) {
    emulation::Reset();
    emulation::SetThreadOrder(order, 1);
    std::vector<uint32_t> values(512);
    std::iota(values.begin(), values.end(), 0u);
    const DeviceBuffer<uint32_t> buffer(512);
    const OwnedStream stream;
    CheckCuda(
        cudaMemcpyAsync(buffer.data(), values.data(), 2048, cudaMemcpyHostToDevice, stream.get()),
        "copy");
    Launch("ReverseKernel", ReverseKernel, {1, 512, 2048}, stream.get(), buffer.data());
    CheckCuda(
        cudaMemcpyAsync(values.data(), buffer.data(), 2048, cudaMemcpyDeviceToHost, stream.get()),
        "copy");
    for (uint32_t i = 0; i < 512; ++i) EXPECT_EQ(values[i], 511 - i);
  }
}

}  // namespace
}  // namespace dlsim::gpu
