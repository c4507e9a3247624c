// SPDX-License-Identifier: Apache-2.0
// What each policy promises; scaler_golden_test.cc compares whole trajectories of the originals.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tests/support/make_policy.h"

namespace dlsim::sim {
namespace {

TEST(Policies, KeepTheirPromises) {
  const double inf = std::numeric_limits<double>::infinity();
  ExpectPromises({
      {"static", {}, "overflow*9", 1},
      {"static", {"loss_scale=2^10"}, "ok*9 overflow", 1024},
      {"static", {"loss_scale=0.1"}, "", 0.1f},
      {"cerebras", {}, "", 0x1.c6bf52p+50},
      {"cerebras", {}, "ok*2001", 0x1.c6bf52p+50},
      {"cerebras", {}, "overflow", 0x1.c6bf52p+49},
      {"cerebras", {}, "overflow*200", 2e-14f},
      {"cerebras", {"loss_scale=128"}, "overflow", 128},
      {"cerebras", {"loss_scale=0"}, "overflow", 1},
      {"cerebras-2.10", {}, "", 0x1p15},
      {"cerebras-2.10", {"init_scale=8"}, "ok*2000", 8},
      {"cerebras-2.10", {"init_scale=8"}, "ok*2001", 16},
      {"cerebras-2.10", {"init_scale=8"}, "ok*4001", 16},
      {"cerebras-2.10", {"init_scale=8"}, "ok*4002", 32},
      {"cerebras-2.10", {"init_scale=8"}, "ok*2000 overflow", 4},
      {"cerebras-2.10", {}, "overflow*100", 0x1p-14},
      {"cerebras-2.10", {"init_scale=2^20"}, "", 0x1p15},
      {"cerebras-2.10", {"fp16_type=cbfloat16"}, "", 0x1p31},
      {"cerebras-2.10", {"init_scale=0", "max_loss_scale=0", "steps_per_increase=0"}, "", 0x1p15},
      {"cerebras-2.10", {"init_scale=8", "overflow_tolerance=0.5"}, "ok overflow", 8},
      {"cerebras-2.10", {"init_scale=8", "overflow_tolerance=0.5"}, "ok overflow*2", 4},
      {"cerebras-2.10", {"init_scale=8", "overflow_tolerance=1"}, "overflow*2001", 16},
      {"cerebras-tf", {"initial_loss_scale=8"}, "ok*1999", 8},
      {"cerebras-tf", {"initial_loss_scale=8"}, "ok*2000", 16},
      {"cerebras-tf", {"initial_loss_scale=8"}, "ok*18 overflow", 4},
      {"cerebras-tf", {"initial_loss_scale=8"}, "ok*19 overflow", 8},
      {"cerebras-tf", {"initial_loss_scale=8"}, "ok*1999 overflow", 16},
      {"cerebras-tf", {"initial_loss_scale=2^20"}, "", 0x1p20},
      {"cerebras-tf", {"initial_loss_scale=2^20"}, "ok", 0x1p15},
      {"torch", {}, "ok*1999", 0x1p16},
      {"torch", {}, "ok*2000", 0x1p17},
      {"torch", {}, "ok*1999 overflow ok*1999", 0x1p15},
      {"torch", {}, "overflow*166", 0},
      {"torch", {"backoff_factor=0.7"}, "overflow", static_cast<float>(65536 * 0.7)},
      {"torch", {"growth_interval=1"}, "ok*1000", 0x1p127},
      {"torch", {"growth_interval=0"}, "ok*5000", 0x1p16},
      {"torch", {"enabled=false"}, "overflow*9", 1},
      {"torch-1.13", {"growth_interval=1"}, "ok*111", 0x1p127},
      {"torch-1.13", {"growth_interval=1"}, "ok*112", inf},
      {"torch-1.13", {"growth_interval=1"}, "ok*112 overflow*99", inf},
      {"torch-1.13", {"growth_interval=4294967298"}, "ok*2", 0x1p17},
  });
}

TEST(Policies, DynamicOnesSkipOverflowsAndStaticOnesNothing) {
  const std::vector<std::pair<std::string, PolicySettings>> statics = {
      {"static", {}}, {"cerebras", {"loss_scale=8"}}, {"torch", {"enabled=False"}}};
  for (const auto& [policy, settings] : statics) {
    EXPECT_FALSE(MakePolicy(policy, settings).scaler.Next({.overflow = true}).skip) << policy;
  }
  for (const PolicyInfo& policy : Policies()) {
    if (policy.name == "static") continue;
    if (policy.name == "popart" || policy.name == "adaloss") continue;  // they never skip
    LossScaler scaler = policy.make({}, "").scaler;
    EXPECT_FALSE(scaler.Next({.overflow = false}).skip) << policy.name;
    EXPECT_TRUE(scaler.Next({.overflow = true}).skip) << policy.name;
  }
}

TEST(Policies, RefuseWhatTheOriginalsRefuse) {
  constexpr std::string_view kTooLarge =
      "RuntimeError: value cannot be converted to type float without overflow";
  const struct {
    std::string_view policy;
    PolicySettings settings;
    std::string_view refusal;
  } cases[] = {
      {"cerebras-2.10", {"min_loss_scale=2e-14"}, "ValueError: min_loss_scale too small"},
      {"cerebras-2.10", {"min_loss_scale=2^-14"}, ""},
      {"cerebras-2.10", {"min_loss_scale=2e-14", "loss_scale=8"}, ""},
      {"cerebras-2.10",
       {"overflow_tolerance=-0.1"},
       "ValueError: loss scaling counter threshold must be set >= 0"},
      {"cerebras",
       {"overflow_tolerance=-0.1"},
       "ValueError: loss scaling counter threshold must be set >= 0"},
      {"cerebras", {"min_loss_scale=2e-14"}, ""},
      {"cerebras-tf",
       {"min_loss_scale=2e-14"},
       "ValueError: `min_loss_scale` of 2e-14 is too small"},
      {"cerebras-tf",
       {"max_loss_scale=1e39"},
       "ValueError: Provided max_loss_scale value of 1e+39 exceeds FP32_MAX of "
       "3.4028234663852886e+38"},
      {"cerebras-tf",
       {"overflow_tolerance=-1"},
       "ValueError: loss scaling coutner threshold must be set >= 0"},
      {"torch", {"growth_factor=1"}, "AssertionError: The growth factor must be > 1.0."},
      {"torch-1.13", {"backoff_factor=1"}, "AssertionError: The backoff factor must be < 1.0."},
      {"torch", {"growth_factor=1", "enabled=false"}, ""},
      {"torch", {"init_scale=2^128"}, kTooLarge},
      {"torch-1.13", {"init_scale=3.4028235e38"}, kTooLarge},
      {"nemo", {"init_scale=1e39"}, kTooLarge},
      {"torch", {"init_scale=0x1.fffffep+127"}, ""},
      {"torch", {"init_scale=2^128", "enabled=false"}, ""},
  };
  for (const auto& [policy, settings, refusal] : cases) {
    EXPECT_EQ(Refusal(policy, settings), refusal)
        << policy << " " << testing::PrintToString(settings);
  }
}

TEST(Policies, ReportTheFloorOnlyWhereTheScaleWasRaised) {
  LossScaler scaler = MakePolicy("cerebras-2.10", {"init_scale=2^-13"}).scaler;
  EXPECT_FALSE(scaler.Next({.overflow = true}).event);  // arrives at the floor exactly
  const ScalerDecision decision = scaler.Next({.overflow = true});
  ASSERT_TRUE(decision.event);
  EXPECT_EQ(decision.event->type, "ApplianceNanError");
  EXPECT_EQ(decision.event->step, 1);
  EXPECT_FALSE(decision.event->fatal);
  EXPECT_EQ(std::get<std::string>(decision.event->details.at(0).value), "0x1.0000000000000p-15");
}

TEST(Policies, FormatCb16ChoosesTheWideDefaults) {
  EXPECT_EQ(MakePolicy("cerebras-2.10", {}, "cb16").scaler.scale(), 0x1p31);
  EXPECT_EQ(MakePolicy("cerebras-2.10", {"init_scale=0"}, "cb16").scaler.scale(), 0x1p31);
  EXPECT_EQ(MakePolicy("cerebras-2.10", {}, "bf16").scaler.scale(), 0x1p15);
  EXPECT_EQ(MakePolicy("cerebras-2.10", {"fp16_type=float16"}, "cb16").scaler.scale(), 0x1p15);
}

TEST(Policies, NoteSurprises) {
  const struct {
    std::string_view policy;
    PolicySettings settings;
    std::string_view note;
  } cases[] = {
      {"cerebras", {}, "refuses min_loss_scale below 2^-14"},
      {"cerebras", {}, "misprints of 2^15 and 2^-14"},
      {"cerebras-2.10", {"max_loss_scale=2e15"}, "misprints"},
      {"cerebras-2.10", {"init_scale=0"}, "init_scale 0 means the default"},
      {"cerebras-2.10", {"init_scale=1e-6"}, "the first step raises ApplianceNanError"},
      {"cerebras-2.10", {"init_scale=2^16"}, "starts at max_loss_scale"},
      {"cerebras-2.10", {"min_loss_scale=2", "max_loss_scale=1"}, "every step raises"},
      {"cerebras-2.10", {"overflow_tolerance=1"}, "keeps growing"},
      {"cerebras-2.10", {"steps_per_increase=-1"}, "every step doubles"},
      {"cerebras-2.10", {"fp16_type=bfloat16"}, "no scaler at all"},
      {"cerebras-tf", {"multiplier=4"}, "multiplier 4.0 is not supported"},
      {"cerebras-tf", {"increment_period=0"}, "counters go negative"},
      {"cerebras-tf", {"overflow_tolerance=1"}, "keeps growing"},
      {"cerebras-tf", {"initial_loss_scale=2^16"}, "uses it as it is"},
      {"cerebras-tf", {"min_loss_scale=2", "max_loss_scale=1"}, "after the first step"},
      {"torch", {"growth_interval=0"}, "the scale never grows"},
      {"torch-1.13", {"growth_interval=9223372036854775807"}, "acts as -1"},
  };
  for (const auto& [policy, settings, note] : cases) {
    EXPECT_TRUE(NotesMention(MakePolicy(policy, settings), note)) << policy << ": " << note;
  }
  EXPECT_TRUE(MakePolicy("static").notes.empty());
}

TEST(Policies, ForceTheMultiplierTo2) {
  LossScaler scaler = MakePolicy("cerebras-tf", {"multiplier=4"}).scaler;
  Advance(scaler, "overflow");
  EXPECT_EQ(scaler.scale(), 0x1p14);
}

TEST(LossScaler, CopiesDivergeIndependently) {
  LossScaler original = MakePolicy("torch").scaler;
  LossScaler copy = original;
  Advance(copy, "overflow");
  EXPECT_EQ(original.scale(), 0x1p16);
  EXPECT_EQ(copy.scale(), 0x1p15);
  original = copy;
  Advance(original, "overflow");
  EXPECT_EQ(original.scale(), 0x1p14);
  EXPECT_EQ(copy.scale(), 0x1p15);
}

}  // namespace
}  // namespace dlsim::sim
