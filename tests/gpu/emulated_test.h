// SPDX-License-Identifier: Apache-2.0
// A test that runs kernels on an emulated machine and leaves nothing behind.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "emulation.h"
#include "gpu/base/check_cuda.h"
#include "gpu/base/device_buffer.h"

namespace dlsim::gpu {

class EmulatedTest : public testing::Test {
 protected:
  EmulatedTest() { emulation::Reset(); }
  void TearDown() override {
    const emulation::LiveObjects live = emulation::Live();
    EXPECT_EQ(live.device_allocations, 0u);
    EXPECT_EQ(live.host_allocations, 0u);
    EXPECT_EQ(live.streams, 0u);
    EXPECT_EQ(live.events, 0u);
  }
};

template <class T>
DeviceBuffer<T> ToDevice(const std::vector<T>& values) {
  DeviceBuffer<T> buffer(values.size());
  Upload(std::span(values), buffer);
  return buffer;
}

// Returns what is there once all streams are done.
template <class T>
std::vector<T> ToHost(const DeviceBuffer<T>& buffer) {
  CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  std::vector<T> values(buffer.size());
  CheckCuda(cudaMemcpy(values.data(), buffer.data(), buffer.size_bytes(), cudaMemcpyDeviceToHost),
            "cudaMemcpy");
  return values;
}

}  // namespace dlsim::gpu
