// SPDX-License-Identifier: Apache-2.0
#include "sim/base/quantity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "sim/base/parse.h"

namespace dlsim::sim {
namespace {

TEST(Quantity, ScalesArePowersOfTwo) {
  EXPECT_EQ(ScaleText(1), "1");
  EXPECT_EQ(ScaleText(0), "0");
  EXPECT_EQ(ScaleText(0x1p-14), "2^-14");
  EXPECT_EQ(ScaleText(2e15), "2^50.83");
  EXPECT_EQ(ScaleText(std::numeric_limits<double>::infinity()), "inf");
}

// Compilers and processors give the NaN of 0 / 0 different signs.
TEST(Quantity, NanHasNoSign) {
  const double signed_nan = std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.0);
  EXPECT_FALSE(std::signbit(WithoutNanSign(signed_nan)));
  EXPECT_FALSE(std::signbit(WithoutNanSign(static_cast<float>(signed_nan))));
  EXPECT_EQ(WithoutNanSign(-0x1p-3f), -0x1p-3f);
  EXPECT_TRUE(std::signbit(WithoutNanSign(-0.0)));
  for (const auto text : {ScaleText, ScaleNumber, NumberText}) {
    EXPECT_EQ(text(signed_nan), "nan");
  }
  EXPECT_EQ(Percent(signed_nan), "nan %");
  EXPECT_EQ(ParameterText({"scale_factor", signed_nan}), "nan");
}

TEST(Quantity, ParametersThatAreScalesToo) {
  EXPECT_EQ(ParameterText({"init_scale", 65536.0}), "2^16");
  EXPECT_EQ(ParameterText({"init_scale", 2e15}), "2e+15");
  EXPECT_EQ(ParameterText("min_loss_scale", std::string("6.103515625e-05")), "2^-14");
  EXPECT_EQ(ParameterText("scale_window", std::string("1024")), "1024");
  EXPECT_EQ(ParameterText({"scale_factor", 2.0}), "2");
  EXPECT_EQ(ParameterText("loss_scale", std::string("dynamic")), "dynamic");
  EXPECT_EQ(ParameterText({"growth_interval", 2048.0}), "2048");
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

TEST(Quantity, NumbersAreShort) {
  EXPECT_EQ(NumberText(2e14), "200000000000000");
  EXPECT_EQ(NumberText(2e15), "2000000000000000");
  EXPECT_EQ(NumberText(2e16), "2e+16");
  EXPECT_EQ(NumberText(0.1), "0.1");
}

TEST(Quantity, BytesHaveUnits) {
  EXPECT_EQ(Bytes(512), "0.5 KiB");
  EXPECT_EQ(Bytes(12'345'678), "11.8 MiB");
  EXPECT_EQ(Bytes(uint64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(Bytes(uint64_t{3} << 40), "3.0 TiB");
}

TEST(HexFloat, IsPythonsFloatHex) {
  EXPECT_EQ(HexFloat(32768.0), "0x1.0000000000000p+15");
  EXPECT_EQ(HexFloat(-0.1), "-0x1.999999999999ap-4");
  EXPECT_EQ(HexFloat(0.0), "0x0.0p+0");
  EXPECT_EQ(HexFloat(-0.0), "-0x0.0p+0");
  EXPECT_EQ(HexFloat(1.0), "0x1.0000000000000p+0");
  EXPECT_EQ(HexFloat(0x1p-1074), "0x0.0000000000001p-1022");
  EXPECT_EQ(HexFloat(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(HexFloat(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(HexFloat(std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(HexFloat, ReadsBack) {
  for (const double value : {1.0, 0.1, 3.5e38, 0x1p-1022, 0x1.8p-1060, 2e-14}) {
    EXPECT_EQ(ParseNumber(HexFloat(value), "x"), value);
  }
}

TEST(PythonRepr, SwitchesToExponentsWherePythonDoes) {
  EXPECT_EQ(PythonRepr(2e-14), "2e-14");
  EXPECT_EQ(PythonRepr(1e39), "1e+39");
  EXPECT_EQ(PythonRepr(3.4028234663852886e+38), "3.4028234663852886e+38");
  EXPECT_EQ(PythonRepr(100000.0), "100000.0");
  EXPECT_EQ(PythonRepr(1e15), "1000000000000000.0");
  EXPECT_EQ(PythonRepr(1e16), "1e+16");
  EXPECT_EQ(PythonRepr(0.0001), "0.0001");
  EXPECT_EQ(PythonRepr(0.00001), "1e-05");
  EXPECT_EQ(PythonRepr(-0.1), "-0.1");
  EXPECT_EQ(PythonRepr(0.0), "0.0");
}

}  // namespace
}  // namespace dlsim::sim
