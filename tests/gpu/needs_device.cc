// SPDX-License-Identifier: Apache-2.0
// Skips all tests of a program where there is no CUDA device.
#include <gtest/gtest.h>

#include "dlsim/gpu.h"

namespace {

class NeedsDevice : public testing::Environment {
  void SetUp() override {
    const dlsim::gpu::DeviceList list = dlsim::gpu::Devices();
    if (list.devices.empty()) GTEST_SKIP() << "no device: " << list.problem;
  }
};

[[maybe_unused]] const auto* const kNeedsDevice =
    testing::AddGlobalTestEnvironment(new NeedsDevice);

}  // namespace
