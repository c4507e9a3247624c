// SPDX-License-Identifier: Apache-2.0
// The profile of a whole trace has the same bytes wherever it is computed.
#include <gtest/gtest.h>

#include <memory>

#include "dlsim/gpu/devices.h"
#include "emulation.h"
#include "sim/profile/profile_run.h"
#include "src/device/compute_device.h"
#include "tests/support/profile_test_util.h"

namespace dlsim::sim {
namespace {

class ProfileOnDevice : public testing::TestWithParam<const char*> {
 protected:
  ProfileOnDevice() {
    emulation::Reset();
    device_ = gpu::OpenDevice(0);
  }

  std::string ProfileOnce(ComputeDevice* device) {
    const TraceReader trace = OpenTrace({kTraces + GetParam()});
    ProfileRequest request;
    request.output = dir_.path() + "/profile";
    request.settings = SettingsOf(SmallLadder());
    request.step.device = device;
    ProfileRun run(trace, request);
    run.Open();
    run.Write([](size_t) {});
    return ReadBytes(request.output);
  }

  TempDir dir_;
  std::unique_ptr<ComputeDevice> device_;
};

INSTANTIATE_TEST_SUITE_P(Traces, ProfileOnDevice,
                         testing::Values("lm-kjv-accum-cut", "lm-trouble-cut", "reg-diabetes-cut",
                                         "cnn-digits"));

TEST_P(ProfileOnDevice, GivesTheSameFile) {
  const std::string expected = ProfileOnce(nullptr);
  EXPECT_GT(expected.size(), 100u);
  EXPECT_TRUE(ProfileOnce(device_.get()) == expected);
  if (emulation::kIsEmulated) {
    EXPECT_GT(emulation::Counts().launches, 0u);
  }
}

}  // namespace
}  // namespace dlsim::sim
