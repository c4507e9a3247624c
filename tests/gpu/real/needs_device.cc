// SPDX-License-Identifier: Apache-2.0
// Skips all tests of a program on a machine without a CUDA device.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

namespace dlsim::gpu {
namespace {

class NeedsDevice : public testing::Environment {
 public:
  void SetUp() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return;
    // CTest looks for the first words.
    GTEST_SKIP() << "[  SKIPPED ] no CUDA device: " << cudaGetErrorString(error);
  }
};

[[maybe_unused]] const testing::Environment* const kEnvironment =
    testing::AddGlobalTestEnvironment(new NeedsDevice);  // which owns it

}  // namespace
}  // namespace dlsim::gpu
