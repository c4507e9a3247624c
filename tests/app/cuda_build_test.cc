// SPDX-License-Identifier: Apache-2.0
// A build with CUDA: the same binary runs on machines with and without a driver.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "dlsim/gpu.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

TEST(CudaBuild, NeedsNoLibraryOfCuda) {
  const CommandResult ldd = RunProgram("/usr/bin/ldd", {DLSIM_COMMAND});
  ASSERT_EQ(ldd.exit_code, 0) << ldd.err;
  EXPECT_NE(ldd.out.find("libc.so"), ldd.out.npos);
  for (const char* library : {"libcuda", "libnv"}) {
    EXPECT_EQ(ldd.out.find(library), ldd.out.npos) << ldd.out;
  }
}

// No device is visible to the command then, as without a driver.
TEST(CudaBuild, WithoutADeviceCudaIsExitCode3AndAutoTheCpu) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  ExpectFailure({"replay", kSingle, "--device", "cuda"}, 3, {"--device: ", "cuda:0"});
  EXPECT_EQ(Succeed({"replay", kSingle, "--device", "auto"}),
            Succeed({"replay", kSingle, "--device", "cpu"}));
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(CudaBuild, TellsDevicesOrWhyThereAreNone) {
  const gpu::DeviceList list = gpu::Devices();
  EXPECT_EQ(list.problem.empty(), !list.devices.empty()) << list.problem;
  EXPECT_EQ(list.problem.find("built without CUDA"), list.problem.npos);
}

}  // namespace
}  // namespace dlsim
