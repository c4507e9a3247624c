// SPDX-License-Identifier: Apache-2.0
// What there is of devices, and why one cannot be used, is said in one line.
#include "dlsim/gpu/devices.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "emulation.h"
#include "src/device/compute_device.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::gpu {
namespace {

using emulation::Reset;

class DevicesTest : public testing::Test {
 protected:
  ~DevicesTest() override { Reset(); }

  static void ExpectRefused(int index, std::initializer_list<std::string_view> words) {
    ExpectInputError([&] { OpenDevice(index); }, words);
    EXPECT_EQ(emulation::Live().total(), 0u);
  }
};

TEST_F(DevicesTest, AreListed) {
  Reset({.device_count = 2, .memory_bytes = 1 << 20, .compute_capability = 75});
  const DeviceList list = Devices();
  EXPECT_EQ(list.problem, "");
  ASSERT_EQ(list.devices.size(), 2u);
  EXPECT_EQ(list.devices[1].index, 1);
  EXPECT_EQ(list.devices[1].name, "Emulated device");
  EXPECT_EQ(list.devices[1].compute_capability, 75);
  EXPECT_EQ(list.devices[1].memory_bytes, 1u << 20);
}

TEST_F(DevicesTest, OpenByIndexAndLeaveTheCurrentDevice) {
  Reset({.device_count = 2});
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(OpenDevice(1)->name(), "cuda:1 (Emulated device)");
  int current = -1;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 0);
  EXPECT_EQ(emulation::Live().total(), 0u);
}

TEST_F(DevicesTest, AreNoneWithoutADriver) {
  Reset({.driver = cudaErrorInsufficientDriver});
  EXPECT_TRUE(Devices().devices.empty());
  EXPECT_EQ(Devices().problem, "no NVIDIA driver is installed");
  ExpectRefused(0, {"--device: no NVIDIA driver is installed, expected a CUDA device, or --device "
                    "cpu, got cuda:0"});
}

TEST_F(DevicesTest, AreNoneWithAnOldDriver) {
  Reset({.driver = cudaErrorInsufficientDriver, .old_driver = 12020});
  ExpectRefused(0, {"--device: the NVIDIA driver is too old: it is for CUDA 12.2, and this dlsim "
                    "for CUDA 13.0, expected"});
}

TEST_F(DevicesTest, MayBeHidden) {
  Reset({.device_count = 0});
  ExpectRefused(3, {"--device: no CUDA device is visible, expected", "got cuda:3"});
}

TEST_F(DevicesTest, MayBeInAnotherTrouble) {
  Reset({.driver = cudaErrorUnknown});
  ExpectRefused(0, {"--device: unknown error, expected"});
}

TEST_F(DevicesTest, HaveAnIndexInRange) {
  Reset({.device_count = 2});
  ExpectRefused(7, {"--device: no such device, expected cuda:0 to cuda:1, got cuda:7"});
  ExpectRefused(-1, {"--device: no such device, expected cuda:0 to cuda:1, got cuda:-1"});
  Reset();
  ExpectRefused(1, {"--device: no such device, expected cuda:0, got cuda:1"});
}

TEST_F(DevicesTest, MayLackCode) {
  Reset({.compute_capability = 61});
  emulation::FailCall("cudaLaunchKernelEx", 1, cudaErrorNoKernelImageForDevice);
  ExpectRefused(0, {"--device: this dlsim holds no code for the compute capability 6.1 of cuda:0 "
                    "(Emulated device)"});
  EXPECT_NE(OpenDevice(0), nullptr) << "the failure is forgotten";
}

TEST_F(DevicesTest, SayWhichCallFailed) {
  Reset();
  for (uint64_t n = 1;; ++n) {
    emulation::FailCall("", n, cudaErrorMemoryAllocation);
    try {
      const std::unique_ptr<ComputeDevice> device = OpenDevice(0);
      EXPECT_EQ(emulation::FailedCall(), "");
      EXPECT_GT(n, 4u);
      break;
    } catch (const Error&) {
    }
    emulation::FailCall("", n, cudaErrorMemoryAllocation);
    ExpectRefused(0, {"--device: cannot use cuda:0 (Emulated device): ", "out of memory"});
  }
}

}  // namespace
}  // namespace dlsim::gpu
