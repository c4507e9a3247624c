// SPDX-License-Identifier: Apache-2.0
#include "sim/base/quantity.h"

#include <gtest/gtest.h>

#include <limits>

namespace dlsim::sim {
namespace {

TEST(Quantity, ScalesArePowersOfTwo) {
  EXPECT_EQ(ScaleText(1), "1");
  EXPECT_EQ(ScaleText(0), "0");
  EXPECT_EQ(ScaleText(0x1p-14), "2^-14");
  EXPECT_EQ(ScaleText(2e15), "2^50.83");
  EXPECT_EQ(ScaleText(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Quantity, ParametersThatAreScalesToo) {
  EXPECT_EQ(ParameterText("init_scale", 65536.0), "2^16");
  EXPECT_EQ(ParameterText("init_scale", 2e15), "2e+15");
  EXPECT_EQ(ParameterText("min_loss_scale", std::string("6.103515625e-05")), "2^-14");
  EXPECT_EQ(ParameterText("scale_window", std::string("1024")), "1024");
  EXPECT_EQ(ParameterText("scale_factor", 2.0), "2");
  EXPECT_EQ(ParameterText("loss_scale", std::string("dynamic")), "dynamic");
  EXPECT_EQ(ParameterText("growth_interval", 2048.0), "2048");
}

TEST(Quantity, SharesArePercentages) {
  EXPECT_EQ(Percent(0), "0");
  EXPECT_EQ(Percent(0.125), "12.5 %");
  EXPECT_EQ(Percent(1e-6), "1.0e-04 %");
}

TEST(Quantity, CountsAgreeWithTheirNoun) {
  EXPECT_EQ(Counted(1, "step"), "1 step");
  EXPECT_EQ(Counted(0, "step"), "0 steps");
  EXPECT_EQ(Counted(12, "more event"), "12 more events");
}

}  // namespace
}  // namespace dlsim::sim
