// SPDX-License-Identifier: Apache-2.0
// What the policies of TensorFlow, Keras, Paddle, OpenSeq2Seq and PopART promise beyond their
// recorded runs: limits, refusals, notes.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "tests/support/make_policy.h"

namespace dlsim::sim {
namespace {

constexpr std::string_view kFamilies[] = {"tf",
                                          "keras2",
                                          "keras",
                                          "tf-contrib",
                                          "paddle",
                                          "paddle-static",
                                          "openseq2seq-backoff",
                                          "openseq2seq-logmax",
                                          "popart",
                                          "adaloss"};

TEST(TfPolicies, KeepFloorCeilingAndWindow) {
  ExpectPromises({
      {"tf", {}, "ok*1999", 0x1p15},
      {"tf", {}, "ok*2000", 0x1p16},
      {"tf", {}, "overflow*20", 1},
      {"tf", {"initial_loss_scale=0.25"}, "overflow", 1},
      {"tf", {"increment_period=1"}, "ok*200", 0x1p127},
      {"tf", {"increment_period=0"}, "ok*3", 0x1p18},
      {"tf", {"increment_period=-5"}, "ok*3", 0x1p18},
      {"keras2", {"initial_scale=8", "dynamic_growth_steps=2"}, "ok*2", 16},
      {"keras2", {"dynamic=false", "initial_scale=8"}, "overflow ok overflow", 8},
      {"tf-contrib", {"init_loss_scale=10"}, "overflow ok overflow", 8},  // need not be neighbors
      {"tf-contrib", {"init_loss_scale=10"}, "overflow", 10},
      {"tf-contrib", {"incr_every_n_steps=2", "init_loss_scale=8"}, "ok overflow ok", 8},
      {"tf-contrib", {"incr_every_n_steps=2", "init_loss_scale=8"}, "ok overflow ok*2", 16},
      {"tf-contrib", {"incr_every_n_steps=2", "init_loss_scale=8"}, "overflow ok*2 overflow", 16},
      {"tf-contrib", {"decr_every_n_nan_or_inf=0", "init_loss_scale=10"}, "overflow", 8},
      {"tf-contrib", {"incr_every_n_steps=1"}, "ok*200", 0x1p127},
      {"tf-contrib", {}, "overflow*400", 1},
  });
}

TEST(Keras3, ReachesZeroAndInfinityAndStays) {
  const double infinity = std::numeric_limits<double>::infinity();
  ExpectPromises({
      {"keras", {}, "overflow*164", 0x1p-149},
      {"keras", {}, "overflow*165", 0},
      {"keras", {"dynamic_growth_steps=1"}, "overflow*165 ok*9", 0},
      {"keras", {"dynamic_growth_steps=1"}, "ok*112", 0x1p127},
      {"keras", {"dynamic_growth_steps=1"}, "ok*113", infinity},
      {"keras", {"dynamic_growth_steps=1"}, "ok*113 overflow*9", infinity},
      {"keras", {"dynamic_growth_steps=0"}, "ok*9", 0x1p15},
  });
}

TEST(Paddle, CountsOverflowsInARow) {
  const double infinity = std::numeric_limits<double>::infinity();
  ExpectPromises({
      {"paddle", {}, "overflow", 0x1p15},
      {"paddle", {}, "overflow*165", 0x1p-149},
      {"paddle", {}, "overflow*166", 0},
      {"paddle", {"incr_every_n_steps=1"}, "ok*112 overflow*9", infinity},
      {"paddle", {"decr_every_n_nan_or_inf=2"}, "overflow ok overflow ok overflow", 0x1p16},
      {"paddle", {"decr_every_n_nan_or_inf=2"}, "overflow ok overflow*2", 0x1p15},
      {"paddle", {"decr_every_n_nan_or_inf=0"}, "overflow*9", 0x1p16},
      {"paddle", {"incr_every_n_steps=0"}, "ok*9", 0x1p16},
      {"paddle", {"enable=false"}, "overflow ok overflow", 1},
      {"paddle", {"use_dynamic_loss_scaling=false"}, "overflow ok overflow", 0x1p16},
      {"paddle-static", {"init_loss_scaling=10"}, "overflow ok overflow", 10},
      {"paddle-static", {"init_loss_scaling=10"}, "overflow*2", 8},
      {"paddle-static", {}, "overflow*400", 1},
      {"paddle-static", {"incr_every_n_steps=1"}, "ok*200", 0x1p127},
  });
  EXPECT_TRUE(MakePolicy("paddle", {"use_dynamic_loss_scaling=false"}).scaler.Next({true}).skip);
  EXPECT_FALSE(MakePolicy("paddle", {"enable=false"}).scaler.Next({true}).skip);
}

TEST(TfAndPaddlePolicies, RefuseWhatTheOriginalsRefuse) {
  const struct {
    std::string_view policy;
    PolicySettings settings;
    std::string_view refusal;
  } cases[] = {
      {"keras",
       {"dynamic=False"},
       "ValueError: LossScaleOptimizer no longer supports `dynamic=False`. Instead, simply set "
       "`loss_scale_factor` directly on the `inner_optimizer`."},
      {"keras2",
       {"dynamic=False"},
       "ValueError: \"initial_scale\" must be specified if \"dynamic\" is False"},
      {"keras2",
       {"dynamic=False", "initial_scale=8", "growth_steps=3"},
       "ValueError: \"dynamic_growth_steps\" must be None if \"dynamic\" is False, but got: 3"},
      {"paddle", {"incr_ratio=1"}, "AssertionError: The incr_ratio must be > 1.0."},
      {"paddle", {"decr_ratio=1"}, "AssertionError: The decr_ratio must be < 1.0."},
      {"paddle", {"decr_ratio=1", "enable=false"}, ""},
      {"paddle-static", {"decr_ratio=1", "incr_ratio=1"}, ""},
      {"popart",
       {"thresholdUpperCountProportion=1.5"},
       "popart_exception: Out of range value for 'thresholdUpperCountProportion'. The current "
       "value is 1.5, but it should be in the range [0, 1]."},
      {"popart",
       {"binEdgeLocation=-0.5"},
       "popart_exception: [AutomaticLossScale transform] Out of range value for "
       "'binEdgeLocation'. The current value is -0.5, but it should be in the range [0, 1]."},
      {"popart",
       {"updatePeriod=0"},
       "popart_exception: [AutomaticLossScale transform][[executeOpNTimesEveryMTimes].Arguments N "
       "and M of executeOpNTimesEveryMTimes are 1, 0 . N must not be larger than M."},
  };
  for (const auto& [policy, settings, refusal] : cases) {
    EXPECT_EQ(Refusal(policy, settings), refusal)
        << policy << " " << testing::PrintToString(settings);
  }
}

TEST(TfAndPaddlePolicies, RefuseValuesOfTheWrongType) {
  const std::vector<std::pair<std::string_view, std::string>> settings = {
      {"tf", "increment_period=1.5"},
      {"tf", "multiplier=two"},
      {"keras", "dynamic=maybe"},
      {"keras2", "initial_scale="},
      {"tf-contrib", "decr_every_n_nan_or_inf=0.5"},
      {"paddle", "enable=2"},
      {"paddle-static", "incr_ratio=inf"},
      {"openseq2seq-backoff", "iteration_order=first"},
      {"openseq2seq-logmax", "beta1=x"},
      {"popart", "updatePeriod=-1"},
      {"popart", "updatePeriod=2^31"},
      {"popart", "lossScaling=0"},
  };
  for (const auto& [policy, setting] : settings) {
    EXPECT_THROW(MakePolicy(policy, {setting}), Error) << policy << " " << setting;
  }
}

TEST(TfAndPaddlePolicies, NoteSurprises) {
  const struct {
    std::string_view policy;
    PolicySettings settings;
    std::string_view note;
  } cases[] = {
      {"tf", {}, "the floor of 1 is fixed"},
      {"tf", {"initial_loss_scale=0.5"}, "the first decrease raises the scale to 1"},
      {"tf", {"increment_period=0"}, "grows on every step"},
      {"tf", {"multiplier=1"}, "overflows do not lower the scale"},
      {"tf", {"initial_loss_scale=1e39"}, "infinite as float32"},
      {"keras2", {"growth_steps=0"}, "growth_steps below 1"},
      {"keras", {}, "no floor and no ceiling"},
      {"keras", {"dynamic_growth_steps=0"}, "never grows"},
      {"keras", {"initial_scale=1e39"}, "infinite as float32"},
      {"tf-contrib", {}, "add up across clean steps"},
      {"tf-contrib", {"init_loss_scale=0.5"}, "raises the scale to 1"},
      {"tf-contrib", {"incr_every_n_steps=0"}, "grows on every clean step"},
      {"tf-contrib", {"decr_ratio=1"}, "overflows do not lower the scale"},
      {"paddle", {}, "no ceiling"},
      {"paddle", {"decr_every_n_nan_or_inf=2"}, "a clean step clears the count of overflows"},
      {"paddle", {"decr_every_n_nan_or_inf=0"}, "never shrinks"},
      {"paddle", {"incr_every_n_steps=0"}, "never grows"},
      {"paddle", {"use_dynamic_loss_scaling=false"}, "never changes, but overflows skip"},
      {"paddle-static", {}, "the floor of 1 is fixed"},
      {"paddle-static", {}, "a clean step clears the count of overflows"},
      {"openseq2seq-backoff", {}, "starts at scale_max"},
      {"openseq2seq-backoff", {"scale_min=8", "scale_max=4"}, "scale_min above scale_max"},
      {"openseq2seq-backoff", {"step_factor=1"}, "overflows do not lower the scale"},
      {"openseq2seq-backoff", {"step_window=0"}, "divides by zero"},
      {"openseq2seq-logmax", {}, "holds the scale at scale_min"},
      {"openseq2seq-logmax", {"beta2=1"}, "the scale is NaN"},
      {"openseq2seq-logmax", {"scale_min=8", "scale_max=4"}, "stays at scale_min"},
      {"popart", {}, "halves or doubles"},
      {"popart", {"thresholdUpperCountProportion=1"}, "divides by zero"},
  };
  for (const auto& [policy, settings, note] : cases) {
    EXPECT_TRUE(NotesMention(MakePolicy(policy, settings), note)) << policy << ": " << note;
  }
}

TEST(TfAndPaddlePolicies, NoteOnlyWhatApplies) {
  const struct {
    std::string_view policy;
    PolicySettings settings;
    size_t notes;
  } cases[] = {
      {"tf", {}, 1},
      {"keras2", {}, 1},
      {"keras2", {"dynamic=false", "initial_scale=8"}, 0},
      {"keras", {}, 1},
      {"tf-contrib", {}, 2},
      {"tf-contrib", {"decr_every_n_nan_or_inf=1"}, 1},
      {"paddle", {}, 1},
      {"paddle", {"enable=false"}, 0},
      {"paddle-static", {}, 2},
      {"paddle-static", {"decr_every_n_nan_or_inf=1"}, 1},
      {"openseq2seq-backoff", {}, 1},
      {"openseq2seq-logmax", {}, 1},
      {"popart", {}, 1},
  };
  for (const auto& [policy, settings, notes] : cases) {
    EXPECT_EQ(MakePolicy(policy, settings).notes.size(), notes)
        << policy << " " << testing::PrintToString(settings);
  }
}

TEST(TfAndPaddlePolicies, TestTheGradientsThatTheOriginalsTest) {
  for (const std::string_view policy : kFamilies) {
    const bool scaled = policy == "keras" || policy == "popart" || policy == "adaloss";
    EXPECT_EQ(FindPolicy(policy).rules.finite_test,
              scaled ? FiniteTest::kElementwise : FiniteTest::kUnscaledElementwise)
        << policy;
  }
}

TEST(TfAndPaddlePolicies, ContinueFromACheckpoint) {
  for (const std::string_view policy : kFamilies) {
    LossScaler scaler = MakePolicy(policy).scaler;
    for (int i = 0; i < 5; ++i) scaler.Next({.overflow = i == 1, .absmax = 3});
    LossScaler restored = MakePolicy(policy).scaler;
    ContinueFrom(scaler, restored);
    for (int i = 0; i < 3000; ++i) {
      scaler.Next({.overflow = false, .absmax = 2});
      restored.Next({.overflow = false, .absmax = 2});
      ASSERT_EQ(restored.scale(), scaler.scale()) << policy << " step " << i;
    }
  }
}

}  // namespace
}  // namespace dlsim::sim
