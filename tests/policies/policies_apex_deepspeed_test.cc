// SPDX-License-Identifier: Apache-2.0
// What the policies of apex, NeMo, DeepSpeed, Megatron, ColossalAI and MindSpore's manager promise;
// scaler_golden_test.cc compares whole trajectories of the originals.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "tests/support/make_policy.h"

namespace dlsim::sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::string_view kPolicies[] = {
    "apex",      "apex-fp16-utils", "apex-hysteresis",
    "deepspeed", "deepspeed-0.16",  "deepspeed-fp16-optimizer",
    "megatron",  "colossalai",      "mindspore-manager"};

struct Ride {
  double scale = 0;
  std::string event;  // the first: "step Type: message"
  bool fatal = false;
  int64_t events = 0;
  int64_t skipped = 0;
};

Ride Take(LossScaler scaler, std::string_view steps) {
  Ride ride;
  for (const ScalerDecision& decision : Advance(scaler, steps)) {
    ride.skipped += decision.skip ? 1 : 0;
    if (!decision.event || ++ride.events > 1) continue;
    ride.event = std::to_string(decision.event->step) + " " + decision.event->type + ": " +
                 decision.event->message;
    ride.fatal = decision.event->fatal;
  }
  ride.scale = scaler.scale();
  return ride;
}

TEST(ApexDeepSpeedPolicies, KeepTheirPromises) {
  ExpectPromises({
      {"apex", {}, "ok*1999", 0x1p16},
      {"apex", {}, "ok*2000", 0x1p17},
      {"apex", {"scale_factor=4"}, "overflow", 0x1p15},
      {"apex", {"scale_window=1"}, "ok*99", 0x1p24},
      {"apex", {"init_scale=2^30"}, "", 0x1p24},
      {"apex", {"init_scale=8", "min_loss_scale=16"}, "", 8},
      {"apex", {"init_scale=8", "min_loss_scale=16"}, "overflow", 16},
      {"apex", {"scale_window=0"}, "overflow*9 ok*9", 0x1p16},
      {"apex", {"scale_window=2.5"}, "ok*9", 0x1p16},
      {"apex", {"loss_scale=0.1"}, "ok*3000 overflow", 0.1},
      {"apex-fp16-utils", {}, "ok*999", 0x1p32},
      {"apex-fp16-utils", {}, "ok*1000", 0x1p33},
      {"apex-fp16-utils", {"init_scale=0.5"}, "overflow", 1},
      {"apex-fp16-utils", {"init_scale=2^1023", "scale_window=1"}, "ok*9", kInfinity},
      {"apex-hysteresis", {"hysteresis=2"}, "overflow", 0x1p16},
      {"apex-hysteresis", {"hysteresis=2"}, "overflow*3", 0x1p14},
      {"apex-hysteresis", {"hysteresis=2"}, "overflow ok overflow", 0x1p16},
      {"apex-hysteresis", {"hysteresis=0"}, "overflow", 0x1p15},
      {"apex-hysteresis", {"growth_interval=1"}, "ok*1000", 0x1p127},
      {"apex-hysteresis", {"backoff_factor=0.7"}, "overflow", static_cast<float>(65536 * 0.7)},
      {"apex-hysteresis", {"growth_factor=1.3", "growth_interval=1"}, "ok*2", 0x1.b0a3d6p+16},
      {"apex-hysteresis", {"growth_interval=4294967298"}, "ok*2", 0x1p17},
      {"deepspeed", {"delayed_shift=2"}, "overflow", 0x1p32},
      {"deepspeed", {"delayed_shift=2"}, "overflow ok overflow*2", 0x1p30},
      {"deepspeed",
       {"delayed_shift=2", "consecutive_hysteresis=true"},
       "overflow ok overflow",
       0x1p32},
      {"deepspeed", {"delayed_shift=2", "scale_window=3"}, "overflow ok*3 overflow", 0x1p31},
      {"deepspeed", {"delayed_shift=2", "scale_window=3"}, "overflow ok*4 overflow", 0x1p33},
      {"deepspeed", {"scale_window=1"}, "ok", 0x1p32},
      {"deepspeed", {"scale_window=1"}, "ok*3", 0x1p34},
      {"deepspeed-0.16", {"delayed_shift=2", "scale_window=3"}, "overflow ok*3 overflow", 0x1p33},
      {"deepspeed", {"delayed_shift=0"}, "overflow*99", 0x1p32},
      {"deepspeed", {"init_scale=0.5"}, "overflow", 1},
      {"deepspeed", {"scale_window=-3"}, "ok*4", 0x1p33},
      {"deepspeed", {"raise_error_at_min_scale=false"}, "overflow*99", 1},
      {"deepspeed-fp16-optimizer", {"scale_window=3"}, "ok*3", 0x1p16},
      {"deepspeed-fp16-optimizer", {"scale_window=3"}, "ok*4", 0x1p17},
      {"deepspeed-fp16-optimizer", {"scale_window=3"}, "ok*6", 0x1p17},
      {"deepspeed-fp16-optimizer", {"scale_window=3"}, "ok*7", 0x1p18},
      {"deepspeed-fp16-optimizer", {"scale_window=1"}, "ok*2", 0x1p17},
      {"deepspeed-fp16-optimizer", {}, "overflow*99", 1},
      {"megatron", {"growth_interval=3"}, "overflow ok*2 overflow", 0x1p31},
      {"megatron", {"growth_interval=3"}, "overflow ok*3 overflow", 0x1p33},
      {"megatron", {"initial_scale=2^127", "growth_interval=1"}, "ok overflow*9", kInfinity},
      {"megatron", {"growth_factor=1.3", "growth_interval=1"}, "ok*2", 0x1.b0a3d4p+32},
      {"colossalai", {}, "overflow", 0x1p16},
      {"colossalai", {}, "overflow ok overflow*2", 0x1p14},
      {"colossalai", {"max_scale=2^17", "growth_interval=1"}, "ok*9", 0x1p17},
      {"colossalai", {"min_scale=2^14"}, "overflow*9", 0x1p14},
      {"colossalai", {"min_scale=0"}, "overflow*999", 0},
      {"colossalai", {"growth_interval=1"}, "ok*999 overflow*9", kInfinity},
      {"colossalai", {"hysteresis=1", "backoff_factor=0.7"}, "overflow", 65536.0f * 0.7f},
      {"colossalai", {"growth_factor=1.3", "growth_interval=1"}, "ok*2", 0x1.b0a3d4p+16},
      {"colossalai", {"growth_interval=0"}, "ok*999", 0x1p16},
      {"mindspore-manager", {"scale_factor=3", "scale_window=1"}, "ok*40", 0x1.517168a4523fdp+87},
      {"mindspore-manager",
       {"scale_factor=3", "scale_window=1"},
       "ok*40 overflow",
       0x1.c1ec8b85c2ffcp+85},
      {"mindspore-manager",
       {"scale_factor=3", "scale_window=1"},
       "ok*630",
       0x1.70b7e695e1786p+1022},
      {"mindspore-manager", {"scale_factor=3", "scale_window=1"}, "ok*631", kInfinity},
      {"mindspore-manager", {}, "overflow*99", 1},
  });
}

TEST(ApexDeepSpeedPolicies, StopWhereTheOriginalsRaise) {
  const std::string at_minimum =
      "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting "
      "run.";
  const struct {
    std::string_view policy;
    PolicySettings settings;
    std::string_view steps;
    std::string event;
  } cases[] = {
      {"apex", {}, "overflow*1091", ""},
      {"apex", {}, "overflow*1092", "1091 ZeroDivisionError: float division by zero"},
      {"apex", {}, "overflow*1091 ok", "1091 ZeroDivisionError: float division by zero"},
      {"apex", {"min_loss_scale=2^-1000"}, "overflow*2000", ""},
      {"apex-fp16-utils",
       {"scale_window=0"},
       "overflow ok",
       "1 ZeroDivisionError: integer modulo by zero"},
      {"apex-fp16-utils", {"scale_window=0.0"}, "ok", "0 ZeroDivisionError: float modulo"},
      {"apex-fp16-utils", {"scale_factor=0"}, "overflow", "0 ZeroDivisionError: division by zero"},
      {"deepspeed", {"init_scale=2^16", "delayed_shift=2"}, "overflow*17", ""},
      {"deepspeed", {"init_scale=2^16", "delayed_shift=2"}, "overflow*18", "17 " + at_minimum},
      {"deepspeed", {"init_scale=2^16", "min_scale=0"}, "overflow*1092", "1091 " + at_minimum},
      {"deepspeed", {"scale_window=0"}, "ok*2", "1 ZeroDivisionError: integer modulo by zero"},
      {"deepspeed-0.16", {"scale_window=0"}, "ok", "0 ZeroDivisionError: integer modulo by zero"},
      {"deepspeed",
       {"init_scale=2^1023", "scale_window=1"},
       "ok*9 overflow",
       "9 OverflowError: cannot convert float infinity to integer"},
      {"deepspeed",
       {"init_scale=2^1023", "scale_window=1", "hysteresis=2"},
       "ok*9 overflow",
       "9 OverflowError: cannot convert float infinity to integer"},
      {"deepspeed",
       {"init_scale=2^1023", "scale_factor=-2.0", "scale_window=1"},
       "ok*3 overflow",
       "3 OverflowError: cannot convert float infinity to integer"},
      {"deepspeed",
       {"init_scale=2^1023", "scale_factor=0.5"},
       "overflow",
       "0 OverflowError: cannot convert float infinity to integer"},
      {"deepspeed",
       {"scale_factor=2", "scale_window=1"},
       "ok*999 overflow",
       "999 OverflowError: integer division result too large for a float"},
      {"deepspeed-fp16-optimizer", {"init_scale=2^1020", "scale_window=1"}, "ok*9 overflow", ""},
      {"deepspeed-fp16-optimizer",
       {"scale_window=0"},
       "ok*2",
       "1 ZeroDivisionError: integer modulo by zero"},
      {"deepspeed-fp16-optimizer", {}, "overflow*99", ""},
      {"mindspore-manager", {}, "overflow*1000 ok overflow*1000", ""},
      {"mindspore-manager",
       {},
       "overflow*1001",
       "1000 RuntimeError: ('Dynamic loss scale Continuous overflow ', 1001, ' times, has "
       "exceeded maximum threshold.')"},
      {"mindspore-manager",
       {"scale_window=1"},
       "ok*1000 overflow",
       "1000 OverflowError: int too large to convert to float"},
  };
  for (const auto& [policy, settings, steps, event] : cases) {
    const Ride ride = Take(MakePolicy(policy, settings).scaler, steps);
    EXPECT_EQ(ride.event, event) << policy << " " << testing::PrintToString(settings);
    EXPECT_EQ(ride.fatal, !event.empty()) << policy << " " << testing::PrintToString(settings);
  }
}

TEST(ApexDeepSpeedPolicies, SkipForEverWhenContinuedPastAFatalError) {
  const Ride zero = Take(MakePolicy("apex").scaler, "overflow*1091 ok*9");
  EXPECT_EQ(zero.events, 9);
  EXPECT_EQ(zero.skipped, 1100);
  EXPECT_EQ(zero.scale, 0);
  const Ride minimum = Take(MakePolicy("deepspeed").scaler, "overflow*40");
  EXPECT_EQ(minimum.events, 8);
  EXPECT_EQ(minimum.skipped, 40);
  EXPECT_EQ(minimum.scale, 1);
  const Ride modulo = Take(MakePolicy("deepspeed-0.16", {"scale_window=0"}).scaler, "ok*5");
  EXPECT_EQ(modulo.events, 5);
  EXPECT_EQ(modulo.skipped, 5);
  const Ride bad_steps = Take(MakePolicy("mindspore-manager").scaler, "overflow*1003");
  EXPECT_EQ(bad_steps.events, 3);
}

TEST(ApexDeepSpeedPolicies, StaticApexSkipsNothing) {
  const Ride ride = Take(MakePolicy("apex", {"loss_scale=128"}).scaler, "overflow*9 ok*5");
  EXPECT_EQ(ride.skipped, 0);
  EXPECT_EQ(ride.scale, 128);
  EXPECT_TRUE(MakePolicy("apex", {"loss_scale=128"}).notes.empty());
}

TEST(ApexDeepSpeedPolicies, StaticDeepSpeedSkipsOverflowsAtAConstantScale) {
  for (const std::string_view policy : {"deepspeed", "deepspeed-fp16-optimizer"}) {
    const PolicySettings settings = {"static_loss_scale=0.1", "min_scale=0.1", "scale_window=1"};
    const Ride ride = Take(MakePolicy(policy, settings).scaler, "ok*5 overflow*9 ok*5");
    EXPECT_EQ(ride.skipped, 9) << policy;
    EXPECT_EQ(ride.events, 0) << policy;
    EXPECT_EQ(ride.scale, 0.1) << policy;
    EXPECT_EQ(Take(MakePolicy(policy, {"loss_scale=0", "init_scale=8"}).scaler, "overflow").scale,
              4);
  }
}

TEST(ApexDeepSpeedPolicies, ContinueFromTheirOwnCheckpoints) {
  for (const std::string_view policy : kPolicies) {
    LossScaler original = MakePolicy(policy).scaler;
    for (int i = 0; i < 7; ++i) original.Next({.overflow = i % 3 == 0});
    LossScaler restored = MakePolicy(policy).scaler;
    ContinueFrom(original, restored);
    const std::string_view rest = "ok*1003 overflow*3 ok*1001";
    EXPECT_EQ(Take(restored, rest).scale, Take(original, rest).scale) << policy;
  }
}

TEST(ApexDeepSpeedPolicies, OnlyColossalAiCheckpointsTheScaleAlone) {
  for (const std::string_view policy : kPolicies) {
    const bool scale_only = FindPolicy(policy).checkpoint == Kept::kScale;
    EXPECT_EQ(scale_only, policy == "colossalai") << policy;
  }
}

}  // namespace
}  // namespace dlsim::sim
