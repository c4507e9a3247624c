// SPDX-License-Identifier: Apache-2.0
// What --device opens, on emulated machines.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "dlsim/error.h"
#include "emulation.h"
#include "sim/app/device_option.h"

namespace dlsim::sim {
namespace {

std::string Opened(const std::string& text, uint64_t input_bytes) {
  const std::unique_ptr<ComputeDevice> device = OpenDevice(ParseDevice(text), input_bytes);
  return device == nullptr ? "cpu" : device->name();
}

TEST(OpenDevice, AutoTakesTheFirstDeviceForLargeInputs) {
  emulation::Reset({.device_count = 2});
  EXPECT_EQ(Opened("auto", kAutoDeviceBytes), "cuda:0 (Emulated device)");
  EXPECT_EQ(Opened("auto", kAutoDeviceBytes - 1), "cpu");
  EXPECT_EQ(Opened("auto", 0), "cpu");
}

TEST(OpenDevice, AutoDoesNotStartCudaForSmallInputs) {
  emulation::Reset();
  Opened("auto", kAutoDeviceBytes - 1);
  EXPECT_EQ(emulation::CountOf("cudaGetDeviceCount"), 0u);
}

TEST(OpenDevice, AutoPassesOverDevicesThatCannotBeUsed) {
  emulation::Reset({.device_count = 2});
  emulation::FailCall("cudaLaunchKernelEx", 1, cudaErrorNoKernelImageForDevice);
  EXPECT_EQ(Opened("auto", kAutoDeviceBytes), "cuda:1 (Emulated device)");
  EXPECT_EQ(emulation::FailedCall(), "cudaLaunchKernelEx");
}

TEST(OpenDevice, AutoIsTheCpuWithoutADriverOrADevice) {
  emulation::Reset({.driver = cudaErrorInsufficientDriver});
  EXPECT_EQ(Opened("auto", ~uint64_t{0}), "cpu");
  emulation::Reset({.device_count = 0});
  EXPECT_EQ(Opened("auto", ~uint64_t{0}), "cpu");
  emulation::Reset();
}

TEST(OpenDevice, CudaTakesTheDeviceOfItsIndexForAnyInput) {
  emulation::Reset({.device_count = 2});
  EXPECT_EQ(Opened("cuda", 0), "cuda:0 (Emulated device)");
  EXPECT_EQ(Opened("cuda:1", 0), "cuda:1 (Emulated device)");
  EXPECT_THROW(Opened("cuda:2", ~uint64_t{0}), Error);
  EXPECT_EQ(Opened("cpu", ~uint64_t{0}), "cpu");
}

}  // namespace
}  // namespace dlsim::sim
