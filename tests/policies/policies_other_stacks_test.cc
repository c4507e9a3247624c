// SPDX-License-Identifier: Apache-2.0
// What the policies of fairseq2, icefall, guided-diffusion and BMTrain promise;
// scaler_golden_test.cc compares whole trajectories of the originals.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>

#include "tests/support/make_policy.h"

namespace dlsim::sim {
namespace {

TEST(OtherStackPolicies, KeepTheirPromises) {
  ExpectPromises({
      {"fairseq2", {}, "ok*1999", 0x1p16},
      {"fairseq2", {}, "ok*2000", 0x1p17},
      {"fairseq2", {"init_scale=4", "min_scale=2"}, "overflow", 2},
      {"fairseq2", {"init_scale=4", "min_scale=3"}, "overflow", 3},
      {"fairseq2", {"init_scale=2^-17", "min_scale=1e-5"}, "overflow*3", 0x1p-20},
      {"icefall", {}, "ok", 2},
      {"icefall", {}, "ok*100", 2},
      {"icefall", {}, "ok*101", 4},
      {"icefall", {}, "ok*401", 16},
      {"icefall", {}, "ok*10 overflow*3", 0.25},
      {"icefall", {}, "ok*10 overflow*3 ok*13", 0.5},
      {"icefall", {"below_25=0", "below_100=1", "below_400=8"}, "ok", 2},
      {"icefall", {"init_scale=8", "below_400=8"}, "ok", 8},
      {"guided-diffusion", {}, "overflow", 0x1p19},
      {"guided-diffusion", {}, "ok", std::pow(2.0, 20.001)},
      {"guided-diffusion", {"init_scale=1", "fp16_scale_growth=0.5"}, "ok*2", 2},
      {"guided-diffusion", {}, "overflow*1095", 0},
      {"bmtrain", {}, "ok*1023", 1024},
      {"bmtrain", {}, "ok*1024", 2048},
      {"bmtrain", {}, "overflow*11", 1},
      {"bmtrain", {"loss_scale=3"}, "overflow*9", 0.75},
      {"bmtrain", {"loss_scale=3", "loss_scale_steps=1", "max_loss_scale=4"}, "ok*9", 6},
      {"bmtrain", {"loss_scale=4", "loss_scale_steps=1", "max_loss_scale=4"}, "ok*9", 4},
      {"bmtrain", {"loss_scale=1", "loss_scale_steps=3"}, "ok*2 overflow ok", 2},
      {"bmtrain", {"loss_scale_factor=0.5"}, "overflow", 512},
  });
}

TEST(OtherStackPolicies, StopWhereTheTrainerDoes) {
  constexpr std::string_view kMinimum =
      "MinimumLossScaleReachedError: Loss is scaled down to minimum.";
  LossScaler below = MakePolicy("fairseq2", {"init_scale=4", "min_scale=3"}).scaler;
  EXPECT_EQ(EventAfter(below, "overflow"), kMinimum);
  LossScaler at = MakePolicy("fairseq2", {"init_scale=4", "min_scale=2"}).scaler;
  EXPECT_EQ(EventAfter(at, "overflow"), "");
  EXPECT_EQ(EventAfter(at, "overflow"), kMinimum);
  LossScaler small = MakePolicy("icefall", {"init_scale=2^-16"}).scaler;
  EXPECT_EQ(EventAfter(small, "ok overflow"), "");
  EXPECT_EQ(EventAfter(small, "overflow"),
            "RuntimeError: grad_scale is too small, exiting: 7.62939453125e-06");
}

TEST(OtherStackPolicies, GuidedDiffusionAtZeroSkipsEveryStep) {
  LossScaler scaler = MakePolicy("guided-diffusion").scaler;
  Advance(scaler, "overflow*1095");
  EXPECT_TRUE(scaler.Next({.overflow = false}).skip);
}

TEST(OtherStackPolicies, GuidedDiffusionContinuesFromAScale) {
  LossScaler scaler = MakePolicy("guided-diffusion").scaler;
  scaler.RestartAt(8);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.Next({.overflow = true});
  EXPECT_EQ(scaler.scale(), 4);
}

TEST(OtherStackPolicies, RefuseWhatTheOriginalsRefuse) {
  EXPECT_EQ(Refusal("fairseq2", {"scale_factor=0"}), "ZeroDivisionError: float division by zero");
  EXPECT_EQ(Refusal("fairseq2", {"scale_factor=0.5"}),
            "AssertionError: The growth factor must be > 1.0.");
  EXPECT_EQ(Refusal("icefall", {"init_scale=1e39"}),
            "RuntimeError: value cannot be converted to type float without overflow");
  EXPECT_EQ(Refusal("bmtrain", {"loss_scale_factor=0"}), "ZeroDivisionError: division by zero");
}

}  // namespace
}  // namespace dlsim::sim
