// SPDX-License-Identifier: Apache-2.0
// What the policies of OpenSeq2Seq and PopART do with magnitudes, counts and windows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <variant>
#include <vector>

#include "tests/support/make_policy.h"

namespace dlsim::sim {
namespace {

TEST(OpenSeq2SeqBackoff, StartsAtTheCeiling) {
  ExpectPromises({
      {"openseq2seq-backoff", {}, "", 0x1p14},
      {"openseq2seq-backoff", {}, "ok*2000", 0x1p14},
      {"openseq2seq-backoff", {"step_window=2"}, "overflow ok*2", 0x1p14},
      {"openseq2seq-backoff", {"step_window=2"}, "overflow ok", 0x1p13},
      {"openseq2seq-backoff", {"step_window=-2"}, "overflow ok*2", 0x1p14},
      {"openseq2seq-backoff", {}, "overflow*30", 1},
      {"openseq2seq-backoff", {"scale_min=8", "scale_max=4"}, "overflow", 8},
  });
}

TEST(OpenSeq2SeqBackoff, DividesByAWindowOfZero) {
  LossScaler scaler = MakePolicy("openseq2seq-backoff", {"step_window=0"}).scaler;
  EXPECT_FALSE(scaler.Next({.overflow = true}).event);
  const ScalerDecision decision = scaler.Next({.overflow = false});
  ASSERT_TRUE(decision.event);
  EXPECT_EQ(decision.event->type, "InvalidArgumentError");
  EXPECT_EQ(decision.event->message, "Integer division by zero");
  EXPECT_TRUE(decision.event->fatal);
  EXPECT_EQ(decision.event->step, 1);
  EXPECT_EQ(scaler.scale(), 0x1p13);
}

TEST(OpenSeq2SeqLogMax, TakesLog2OfTheLargestMagnitude) {
  LossScaler scaler = MakePolicy("openseq2seq-logmax", {"scale_max=2^24"}).scaler;
  EXPECT_TRUE(scaler.uses_absmax());
  EXPECT_EQ(scaler.scale(), 1);
  scaler.Next({.overflow = false, .absmax = 4});
  EXPECT_NEAR(scaler.scale(), 0x1p14, 100);  // 2^(16 - 2), but for rounding errors
}

TEST(OpenSeq2SeqLogMax, OverflowsOnAMagnitudeThatIsNotFinite) {
  for (const float magnitude :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    LossScaler scaler = MakePolicy("openseq2seq-logmax").scaler;
    EXPECT_TRUE(scaler.Next({.overflow = false, .absmax = magnitude}).skip);
    for (int i = 0; i < 200; ++i) {
      EXPECT_FALSE(scaler.Next({.overflow = false, .absmax = 1e-6f}).skip);
    }
    EXPECT_EQ(scaler.scale(), 1);
  }
}

TEST(OpenSeq2SeqLogMax, NeverRecoversFromAGradientOfZeros) {
  LossScaler scaler = MakePolicy("openseq2seq-logmax").scaler;
  scaler.Next({.overflow = false, .absmax = 0});
  for (int i = 0; i < 9; ++i) scaler.Next({.overflow = false, .absmax = 1});
  EXPECT_TRUE(std::isnan(scaler.scale()));
}

// Returns the scales after steps with these counts above the edge and 1000 below it.
std::vector<double> PopartScales(const PolicySettings& settings,
                                 const std::vector<uint64_t>& above) {
  LossScaler scaler = MakePolicy("popart", settings).scaler;
  std::vector<double> scales;
  for (const uint64_t count : above) {
    const ScalerDecision decision =
        scaler.Next({.overflow = true, .below_edge = 1000, .above_edge = count});
    EXPECT_FALSE(decision.skip);
    scales.push_back(scaler.scale());
  }
  return scales;
}

TEST(Popart, HalvesAboveTheThresholdAndDoublesElse) {
  using Scales = std::vector<double>;
  EXPECT_EQ(PopartScales({}, {0, 1, 0}), (Scales{2, 1, 2}));
  EXPECT_EQ(PopartScales({"thresholdUpperCountProportion=0.5"}, {1000, 1001}), (Scales{2, 1}));
  EXPECT_EQ(PopartScales({"thresholdUpperCountProportion=1"}, {5000, 5000}), (Scales{2, 4}));
  EXPECT_EQ(PopartScales({"thresholdUpperCountProportion=0"}, {0, 1}), (Scales{2, 1}));
  EXPECT_EQ(PopartScales({"lossScaling=10"}, {0, 0}), (Scales{20, 40}));
}

// As in PopART's own test of updatePeriod 2, where the loss scale is read before the update.
TEST(Popart, UpdatesOnTheFirstStepOfEachPeriod) {
  EXPECT_EQ(PopartScales({"updatePeriod=2", "lossScaling=10"}, {0, 0, 0, 0, 0, 0, 0}),
            (std::vector<double>{20, 20, 40, 40, 80, 80, 160}));
}

TEST(Popart, CutsItsHistogramAtAShareOfTheLargestFp16) {
  EXPECT_EQ(MakePolicy("popart").scaler.histogram_edge(), 8188.0);
  EXPECT_EQ(MakePolicy("popart", {"binEdgeLocation=1"}).scaler.histogram_edge(), 65504.0);
  EXPECT_EQ(MakePolicy("tf").scaler.histogram_edge(), std::nullopt);
}

TEST(Popart, RestartsAtAScaleWithTheFactorThatGivesIt) {
  LossScaler scaler = MakePolicy("popart", {"lossScaling=10"}).scaler;
  scaler.RestartAt(80);
  EXPECT_EQ(scaler.scale(), 80);
  EXPECT_EQ(std::get<double>(scaler.Checkpoint().at(0).value), 8);
}

}  // namespace
}  // namespace dlsim::sim
