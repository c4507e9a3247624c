// SPDX-License-Identifier: Apache-2.0
// The command on a real device; skipped where there is none.
#include <gtest/gtest.h>

#include <string>

#include "dlsim/gpu.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"

namespace dlsim {
namespace {

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    const gpu::DeviceList list = gpu::Devices();
    if (list.devices.empty()) GTEST_SKIP() << "no device: " << list.problem;
  }

  // Runs a command on a device and returns what it prints.
  static std::string Run(Arguments arguments, const char* device) {
    arguments.insert(arguments.end(), {"--quiet", "--device", device});
    return Succeed(arguments);
  }
};

TEST_F(CudaDevice, ReplaysToTheSameBytes) {
  for (const std::string& trace : {kSingle, kAccumulated}) {
    for (const char* format : {"--json", "--csv"}) {
      const Arguments replay = {"replay", trace, format, "-"};
      EXPECT_EQ(Run(replay, "cuda"), Run(replay, "cpu"));
    }
  }
}

TEST_F(CudaDevice, ProfilesToTheSameBytes) {
  const TempDir dir;
  for (const std::string& trace : {kSingle, kAccumulated}) {
    Run({"profile", trace, "-o", dir.path() + "/cpu"}, "cpu");
    Run({"profile", trace, "-o", dir.path() + "/cuda"}, "cuda");
    EXPECT_EQ(ReadBytes(dir.path() + "/cuda"), ReadBytes(dir.path() + "/cpu"));
  }
}

}  // namespace
}  // namespace dlsim
