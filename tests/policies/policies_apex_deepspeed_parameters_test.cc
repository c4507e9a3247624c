// SPDX-License-Identifier: Apache-2.0
// Which parameters the policies of apex, NeMo, DeepSpeed, Megatron, ColossalAI and MindSpore's
// manager refuse, what they note, and which finite test they bring.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/support/make_policy.h"

namespace dlsim::sim {
namespace {

TEST(ApexDeepSpeedParameters, RefuseWhatTheOriginalsRefuse) {
  const struct {
    std::string_view policy;
    PolicySettings settings;
    std::string_view refusal;
  } cases[] = {
      {"apex-hysteresis", {"growth_factor=1"}, "AssertionError: The growth factor must be > 1.0."},
      {"apex-hysteresis",
       {"backoff_factor=1"},
       "AssertionError: The backoff factor must be < 1.0."},
      {"megatron", {"initial_scale=0"}, "AssertionError: assert initial_scale > 0.0"},
      {"megatron", {"min_scale=0"}, "AssertionError: assert min_scale > 0.0"},
      {"megatron",
       {"initial_scale=1", "min_scale=2"},
       "AssertionError: assert min_scale <= initial_scale"},
      {"megatron", {"initial_scale=2", "min_scale=2"}, ""},
      {"megatron", {"growth_factor=1"}, "AssertionError: assert growth_factor > 1.0"},
      {"megatron", {"backoff_factor=1"}, "AssertionError: assert backoff_factor < 1.0"},
      {"megatron", {"backoff_factor=0"}, "AssertionError: assert backoff_factor > 0.0"},
      {"megatron", {"growth_interval=0"}, "AssertionError: assert growth_interval > 0"},
      {"megatron", {"hysteresis=0"}, "AssertionError: assert hysteresis > 0"},
      {"colossalai", {"initial_scale=0"}, "AssertionError: assert initial_scale > 0"},
      {"colossalai",
       {"min_scale=-1"},
       "AssertionError: The minimum gradient scale cannot be zero or negative"},
      {"colossalai",
       {"min_scale=2^17"},
       "AssertionError: The minimum gradient scale cannot be greater than the current scale"},
      {"colossalai",
       {"max_scale=-1"},
       "AssertionError: The maximum gradient scale cannot be zero or negative"},
      {"colossalai",
       {"max_scale=2^15"},
       "AssertionError: The maximum gradient scale cannot be smaller than the current scale"},
      {"colossalai", {"min_scale=2^16", "max_scale=2^16"}, ""},
      {"colossalai", {"min_scale=0", "max_scale=None"}, ""},
      {"colossalai",
       {"growth_factor=1"},
       "AssertionError: The growth factor cannot be equal or smaller than 1"},
      {"colossalai",
       {"backoff_factor=1"},
       "AssertionError: The backoff factor must be between 0 and 1"},
      {"colossalai",
       {"backoff_factor=0"},
       "AssertionError: The backoff factor must be between 0 and 1"},
      {"colossalai", {"hysteresis=-1"}, "AssertionError: The hysteresis cannot be negative"},
      {"mindspore-manager",
       {"init_loss_scale=0"},
       "ValueError: The argument 'init_loss_scale' must be > 1, but got 0"},
      {"mindspore-manager", {"init_loss_scale=1"}, ""},
      {"mindspore-manager",
       {"scale_window=0"},
       "ValueError: For 'DynamicLossScaleManager', the 'scale_window' must be int and must > 0, "
       "but got '0' with type 'int'."},
      {"mindspore-manager",
       {"scale_window=2000.0"},
       "TypeError: For 'DynamicLossScaleManager', the 'scale_window' must be int, but got "
       "'float'"},
      {"mindspore-manager",
       {"scale_factor=-0.5"},
       "ValueError: The argument 'scale_factor' must be > 0, but got -0.5"},
      {"apex",
       {"init_scale=0"},
       "apex.init_scale: not a loss scale, expected a positive number, "
       "got '0'"},
      {"apex",
       {"loss_scale=-1"},
       "apex.loss_scale: not a loss scale, expected a positive number, "
       "got '-1'"},
      {"deepspeed",
       {"init_scale=-2^3"},
       "deepspeed.init_scale: not a loss scale, expected a "
       "positive number, got '-2^3'"},
      {"deepspeed",
       {"hysteresis=2^54"},
       "deepspeed.delayed_shift: out of range, expected at most "
       "2^53 either way, got '2^54'"},
      {"deepspeed",
       {"loss_scale=-1"},
       "deepspeed.loss_scale: not a loss scale, expected a positive number, or 0, got '-1'"},
      {"deepspeed-fp16-optimizer",
       {"loss_scale=1e999"},
       "deepspeed-fp16-optimizer.loss_scale: number out of range, expected a number that binary64 "
       "can hold, got '1e999'"},
      {"apex-hysteresis",
       {"hysteresis=2^31"},
       "apex-hysteresis.hysteresis: out of range, "
       "expected a number that int32 can hold, got '2^31'"},
  };
  for (const auto& [policy, settings, refusal] : cases) {
    EXPECT_EQ(Refusal(policy, settings), refusal)
        << policy << " " << testing::PrintToString(settings);
  }
}

TEST(ApexDeepSpeedParameters, NoteSurprisesOnlyWhereTheyApply) {
  const struct {
    std::string_view policy;
    PolicySettings hit;
    PolicySettings miss;
    std::string_view note;
  } cases[] = {
      {"apex", {"scale_factor=4"}, {}, "scale_factor is ignored"},
      {"apex", {}, {"min_loss_scale=1"}, "the step after that raises ZeroDivisionError"},
      {"apex", {"min_loss_scale=0"}, {}, "min_loss_scale 0 means none"},
      {"apex", {"min_loss_scale=2^17"}, {"min_loss_scale=2^16"}, "first overflow raises the scale"},
      {"apex", {"init_scale=2^25"}, {"init_scale=2^24"}, "starts at max_loss_scale"},
      {"apex", {"scale_window=0"}, {}, "doubled back at once"},
      {"apex", {"scale_window=-1"}, {"scale_window=1"}, "never grows"},
      {"apex-fp16-utils", {"init_scale=0.5"}, {}, "raises the scale to 1"},
      {"apex-fp16-utils", {"scale_factor=0"}, {}, "divides by it raises"},
      {"apex-fp16-utils", {"scale_factor=0.5"}, {}, "falls when it should grow"},
      {"apex-fp16-utils", {"scale_factor=1"}, {}, "does not change"},
      {"apex-fp16-utils", {"scale_factor=-2"}, {}, "makes the scale negative"},
      {"apex-fp16-utils", {"scale_window=0"}, {}, "first clean step raises"},
      {"apex-hysteresis", {"hysteresis=3"}, {}, "one clean step restores it"},
      {"apex-hysteresis", {"hysteresis=0"}, {}, "acts as 1"},
      {"apex-hysteresis", {"growth_interval=0"}, {}, "the scale never grows"},
      {"apex-hysteresis", {"growth_interval=2^40"}, {}, "acts as 0"},
      {"deepspeed", {}, {"init_scale=2^16"}, "defaults of the class"},
      {"deepspeed", {"hysteresis=0"}, {}, "never lower the scale"},
      {"deepspeed", {"hysteresis=2"}, {}, "restored only when the scale grows"},
      {"deepspeed",
       {"hysteresis=2"},
       {"hysteresis=2", "consecutive_hysteresis=true"},
       "overflows far apart add up"},
      {"deepspeed", {"init_scale=0.5"}, {}, "first decrease raises the scale"},
      {"deepspeed", {"min_scale=0"}, {}, "underflowed to 0"},
      {"deepspeed", {"min_scale=-1"}, {}, "without an error"},
      {"deepspeed", {}, {"scale_window=0"}, "first grows after scale_window + 1 clean steps"},
      {"deepspeed", {"scale_window=0"}, {}, "second clean step in a row raises"},
      {"deepspeed-0.16", {"scale_window=0"}, {}, "first clean step raises"},
      {"deepspeed-fp16-optimizer", {}, {"scale_window=0"}, "scale_window + 1 clean steps"},
      {"deepspeed-fp16-optimizer", {"scale_window=0"}, {}, "second clean step in a row raises"},
      {"deepspeed-fp16-optimizer", {"init_scale=0.5"}, {}, "first overflow raises the scale"},
      {"deepspeed-fp16-optimizer", {"min_scale=0"}, {}, "can reach 0"},
      {"megatron", {}, {"hysteresis=1"}, "restored only when the scale grows"},
      {"megatron", {"initial_scale=1e39"}, {}, "infinite as float32"},
      {"megatron", {"min_scale=1e-50"}, {}, "0 as float32"},
      {"colossalai", {}, {"hysteresis=1"}, "restored only when the scale grows"},
      {"colossalai", {"hysteresis=0"}, {}, "acts as 1"},
      {"colossalai", {"min_scale=0"}, {}, "min_scale 0 means none"},
      {"colossalai", {"max_scale=0"}, {}, "max_scale 0 means none"},
      {"colossalai", {}, {"min_scale=1"}, "can reach 0"},
      {"colossalai", {}, {"max_scale=2^32"}, "grow to infinity"},
      {"colossalai", {"growth_interval=0"}, {}, "never grows"},
      {"colossalai", {"initial_scale=1e39"}, {}, "infinite"},
      {"mindspore-manager", {"scale_factor=0.5"}, {}, "falls when it should grow"},
  };
  for (const auto& [policy, hit, miss, note] : cases) {
    EXPECT_TRUE(NotesMention(MakePolicy(policy, hit), note)) << policy << ": " << note;
    EXPECT_FALSE(NotesMention(MakePolicy(policy, miss), note)) << policy << ": " << note;
  }
  for (const std::string_view policy : {"apex-fp16-utils", "mindspore-manager"}) {
    EXPECT_TRUE(MakePolicy(policy).notes.empty()) << policy;
  }
}

TEST(ApexDeepSpeedParameters, BringTheFiniteTestOfTheirStack) {
  EXPECT_EQ(FindPolicy("apex").rules.finite_test, FiniteTest::kElementwise);
  EXPECT_EQ(FindPolicy("apex_fp16_utils").rules.finite_test, FiniteTest::kSum);
  EXPECT_EQ(FindPolicy("nemo").rules.finite_test, FiniteTest::kElementwise);
  EXPECT_EQ(FindPolicy("nemo").rules.optimizer_skip, OptimizerSkip::kOwn);
  EXPECT_EQ(FindPolicy("deepspeed").rules.finite_test, FiniteTest::kScaledNorm);
  EXPECT_EQ(FindPolicy("deepspeed_fp16_optimizer").rules.finite_test, FiniteTest::kScaledNorm);
  EXPECT_EQ(FindPolicy("megatron").rules.finite_test, FiniteTest::kElementwise);
  EXPECT_EQ(FindPolicy("colossalai").rules.finite_test, FiniteTest::kElementwise);
  EXPECT_EQ(FindPolicy("mindspore_manager").rules.finite_test, FiniteTest::kUnscaledElementwise);
}

}  // namespace
}  // namespace dlsim::sim
