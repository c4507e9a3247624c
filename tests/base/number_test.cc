// SPDX-License-Identifier: Apache-2.0
// Reading numbers.
#include "sim/base/parse.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

TEST(ParseNumber, ReadsEverySpelling) {
  EXPECT_EQ(ParseNumber("2^15", "x"), 32768.0);
  EXPECT_EQ(ParseNumber("2^-14", "x"), 0x1p-14);
  EXPECT_EQ(ParseNumber("-2^3", "x"), -8.0);
  EXPECT_EQ(ParseNumber("2^-1074", "x"), 0x1p-1074);
  EXPECT_EQ(ParseNumber("2e15", "x"), 2e15);
  EXPECT_EQ(ParseNumber("2E-14", "x"), 2e-14);
  EXPECT_EQ(ParseNumber("0x1.8p+3", "x"), 12.0);
  EXPECT_EQ(ParseNumber("-0X1.8P3", "x"), -12.0);
  EXPECT_EQ(ParseNumber("0xff", "x"), 255.0);
  EXPECT_EQ(ParseNumber("65536", "x"), 65536.0);
  EXPECT_EQ(ParseNumber("+3", "x"), 3.0);
  EXPECT_EQ(ParseNumber(".5", "x"), 0.5);
}

TEST(ParseNumber, RefusesEverythingElse) {
  for (const std::string text :
       {"",     " ",    " 1",       "1 ", "1,5",  "--1",   "+-1", "-",   "inf",
        "-inf", "nan",  "infinity", "2^", "2^^3", "2^1.5", "2^+", "3^2", "2**15",
        "0x",   "0x-1", "0xg",      "1e", "e5",   "1.2.3", "abc"}) {
    EXPECT_THROW(ParseNumber(text, "x"), Error) << "'" << text << "'";
  }
  for (const std::string text : {"1e400", "1e-400", "2^1024", "2^-1075", "2^99999999999"}) {
    EXPECT_THROW(ParseNumber(text, "x"), Error) << text;
  }
}

TEST(ParseNumber, SaysWhatItExpected) {
  try {
    ParseNumber("lots", "torch.init_scale");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(),
                 "torch.init_scale: not a number, expected a number such as 2^15, 2e15 or "
                 "0x1.8p+3, got 'lots'");
  }
}

TEST(ParseInteger, ReadsIntegersOnly) {
  EXPECT_EQ(ParseInteger("2^10", "x"), 1024);
  EXPECT_EQ(ParseInteger("2e3", "x"), 2000);
  EXPECT_EQ(ParseInteger("-3", "x"), -3);
  EXPECT_EQ(ParseInteger("9223372036854775807", "x"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ParseInteger("-2^63", "x"), std::numeric_limits<int64_t>::min());
  for (const std::string text : {"0.5", "2^63", "9223372036854775808", "2^-1", "1e19", "x", ""}) {
    EXPECT_THROW(ParseInteger(text, "x"), Error) << text;
  }
}

TEST(ParseBool, ReadsPythonAndShellSpellings) {
  for (const std::string text : {"true", "True", "1"}) EXPECT_TRUE(ParseBool(text, "x"));
  for (const std::string text : {"false", "False", "0"}) EXPECT_FALSE(ParseBool(text, "x"));
  EXPECT_THROW(ParseBool("yes", "x"), Error);
}

TEST(Quoted, IsPrintable) { EXPECT_EQ(Quoted("a\nb"), "'a\\x0ab'"); }

}  // namespace
}  // namespace dlsim::sim
