// SPDX-License-Identifier: Apache-2.0
// Replays the recorded trajectories of the real scalers (tests/data/scalers) bit for bit.
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/golden_scalers.h"

namespace dlsim::sim {
namespace {

struct GoldenFile {
  std::string_view name;
  std::string_view policy;
  size_t cases;
};

void PrintTo(const GoldenFile& file, std::ostream* out) { *out << file.name; }

// These scalers skip the optimizer's step on every overflow, except Apex with a static scale, and
// where the data says otherwise.
std::vector<int64_t> SkippedSteps(const GoldenJson& golden) {
  if (golden.contains("skipped")) return golden.at("skipped");
  if (golden.at("scaler") == "apex_amp" && golden.at("params").contains("loss_scale")) return {};
  std::vector<int64_t> steps = OverflowSteps(golden.at("overflow_rle"));
  const int64_t steps_run = golden.at("steps_run").get<int64_t>();
  std::erase_if(steps, [&](int64_t step) { return step >= steps_run; });
  return steps;
}

class ScalerGolden : public testing::TestWithParam<GoldenFile> {};

TEST_P(ScalerGolden, ReplaysTheOriginal) {
  const PolicyInfo& policy = FindPolicy(GetParam().policy);
  const std::vector<GoldenJson> cases = ReadGoldenCases(GetParam().name);
  ASSERT_EQ(cases.size(), GetParam().cases);
  for (const GoldenJson& golden : cases) {
    SCOPED_TRACE(golden.at("case").get<std::string>() + " " + golden.at("params").dump());
    const std::vector<int64_t> overflow_steps = OverflowSteps(golden.at("overflow_rle"));
    const ScalerRun run = RunGoldenCase(policy, golden, overflow_steps);
    ExpectSameRun(golden, policy, run);
    if (run.scale_init) {
      EXPECT_EQ(run.skipped, SkippedSteps(golden));
    }
  }
}

constexpr GoldenFile kFiles[] = {
    {"cerebras_pytorch", "cerebras_pytorch", 123},
    {"cerebras_tf", "cerebras_tf", 114},
    {"torch_new", "torch_new", 100},
    {"torch_1_13", "torch_1_13", 89},
    {"fairseq", "fairseq", 139},
    {"metaseq", "metaseq", 49},
    {"fairscale_layerwise_1layer", "fairscale_layerwise_1layer", 45},
    {"flax", "flax", 69},
    {"jmp", "jmp", 52},
    {"mxnet", "mxnet", 55},
    {"mindspore_amp_dynamic", "mindspore_amp_dynamic", 47},
    {"mindspore_update_cell", "mindspore_update_cell", 45},
    {"apex_amp", "apex_amp", 81},
    {"apex_fp16_utils", "apex_fp16_utils", 50},
    {"apex_update_scale_hysteresis", "apex_update_scale_hysteresis", 59},
    {"deepspeed", "deepspeed", 210},
    {"deepspeed_before_0_17_1", "deepspeed-0.16", 210},
    {"deepspeed_fp16_optimizer", "deepspeed_fp16_optimizer", 48},
    {"megatron", "megatron", 119},
    {"colossalai", "colossalai", 158},
    {"mindspore_manager", "mindspore_manager", 47},
    {"tf_dynamic_loss_scale", "tf_dynamic_loss_scale", 45},
    {"keras2_loss_scale_optimizer", "keras2_loss_scale_optimizer", 34},
    {"keras3_loss_scale_optimizer", "keras3_loss_scale_optimizer", 33},
    {"tf_contrib_exponential", "tf_contrib_exponential", 63},
    {"paddle_dygraph", "paddle_dygraph", 69},
    {"paddle_static", "paddle_static", 70},
    {"openseq2seq_backoff", "openseq2seq_backoff", 98},
    {"fairseq2", "fairseq2", 54},
    {"icefall", "icefall", 50},
    {"guided_diffusion", "guided-diffusion", 40},
    {"bmtrain", "bmtrain", 74},
    // Stacks whose rule is another's with settings of its own (docs/policies.md).
    {"onnxruntime", "apex", 20},
    {"oneflow", "tf", 20},
    {"torch_npu", "torch", 20},
    {"megengine", "fairscale", 20},
    {"mpx", "colossalai", 16},
};

INSTANTIATE_TEST_SUITE_P(Scalers, ScalerGolden, testing::ValuesIn(kFiles),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace dlsim::sim
