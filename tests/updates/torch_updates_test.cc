// SPDX-License-Identifier: Apache-2.0
// The replay against the optimizers themselves: probes whose last values are what torch.optim and
// lion-pytorch made of the first ones. Each file says in its description what made it.
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "dlsim/probe.h"
#include "sim/updates/update_replay.h"

namespace dlsim::sim {
namespace {

class TorchUpdates : public testing::TestWithParam<std::string> {};

TEST_P(TorchUpdates, AreEqualBitForBit) {
  const std::string name = GetParam();
  const ProbeReader probe =
      ProbeReader::Open(std::string(DLSIM_TEST_DATA) + "/probes/" + name + ".dlprobe");
  UpdateRunRequest request;
  request.weights = name.substr(name.find('-') + 1);
  const std::vector<UpdateRun> runs = {MakeUpdateRuns(request, {}).front()};
  ASSERT_EQ(runs[0].kernel, UpdateKernel::kForeach);
  UpdateReplay replay(probe.head(), probe.ReadValues(0).value(), runs, 0, name);
  for (size_t i = 0; i < probe.step_count(); ++i) replay.Take(probe.ReadStep(i));
  const ProbeValues torch = probe.ReadValues(probe.step_count()).value();
  ASSERT_EQ(torch.values.size(), 64u);
  for (size_t i = 0; i < torch.values.size(); ++i) {
    const float weight = replay.StateOf(0, 0).weights[i];
    EXPECT_EQ(std::bit_cast<uint32_t>(weight), std::bit_cast<uint32_t>(torch.values[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Probes, TorchUpdates,
                         testing::Values("adamw-bf16", "adamw-fp16", "adam-bf16", "adam-fp16",
                                         "sgd-bf16", "sgd-fp16", "lion-bf16", "lion-fp16",
                                         "adafactor-bf16", "adafactor-fp16"));

}  // namespace
}  // namespace dlsim::sim
