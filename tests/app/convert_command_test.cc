// SPDX-License-Identifier: Apache-2.0
// dlsim convert writes what EncodeArray and DecodeArray compute, in the shape of its input.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/convert.h"
#include "src/trace/npy.h"
#include "tests/support/formats_under_test.h"
#include "tests/support/run_command.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

class ConvertCommand : public testing::Test {
 protected:
  ConvertCommand() {
    for (int exponent = -60; exponent <= 60; ++exponent) {
      for (const float mantissa : {1.0f, -1.0009765f, 1.5f, 1.9999f}) {
        values_.push_back(std::ldexp(mantissa, exponent));
      }
    }
    for (const float value : {0.0f, -0.0f, HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
      values_.push_back(value);
    }
    while (values_.size() % 6 != 0) values_.push_back(3.14159f);
    shape_ = {2, 3, values_.size() / 6};
    dir_.Write("in.npy", MakeNpyHeader("<f4", shape_, true) + FloatBytes(values_));
  }

  // Runs convert from one file to another and returns what it wrote.
  std::string Convert(Arguments options, const std::string& in, const std::string& out) {
    options.insert(options.begin(), "convert");
    options.push_back(Path(in));
    options.push_back(Path(out));
    EXPECT_EQ(Succeed(options), "");
    return ReadBytes(Path(out));
  }

  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  // The file that convert must write.
  template <class Code>
  std::string Expected(const ArrayConversion& how) const {
    std::vector<Code> codes(values_.size());
    EncodeArray(how, values_, codes);
    const char* const type = sizeof(Code) == 2 ? "<u2" : "<u4";
    std::string bytes = MakeNpyHeader(type, shape_, true);
    for (const Code code : codes) bytes += LittleEndian(code, sizeof(Code));
    return bytes;
  }
  std::string Expected(const ArrayConversion& how) const {
    return CodeBits(how.conversion.format) > 16 ? Expected<uint32_t>(how) : Expected<uint16_t>(how);
  }

  std::vector<float> values_;
  std::vector<uint64_t> shape_;
  TempDir dir_;
};

TEST_F(ConvertCommand, EncodesAndDecodesEveryFormatWithItsShape) {
  for (const NamedFormat& format : FormatsUnderTest()) {
    const std::string codes = Convert({"--to", format.name}, "in.npy", "codes.npy");
    EXPECT_EQ(codes, Expected({.conversion = {format.format}})) << format.name;
    const std::string floats = Convert({"--from", format.name}, "codes.npy", "back.npy");
    EXPECT_TRUE(floats.starts_with(MakeNpyHeader("<f4", shape_, true))) << format.name;
    EXPECT_EQ(Convert({"--to", format.name}, "back.npy", "again.npy"), codes) << format.name;
  }
}

TEST_F(ConvertCommand, TakesEveryMode) {
  const std::vector<std::pair<std::string, Rounding>> roundings = {
      {"rne", Rounding::kNearestEven},   {"rtz", Rounding::kTowardZero},
      {"rna", Rounding::kNearestAway},   {"ru", Rounding::kTowardPositive},
      {"rd", Rounding::kTowardNegative}, {"sr", Rounding::kStochastic}};
  for (const auto& [rounding_name, rounding] : roundings) {
    for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
      for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
        const Conversion conversion = {kCb16, rounding, overflow, subnormals};
        const Arguments options = {
            "--to",         "cb16",
            "--rounding",   rounding_name,
            "--overflow",   overflow == Overflow::kInfinity ? "inf" : "saturate",
            "--subnormals", subnormals == Subnormals::kKeep ? "keep" : "flush"};
        EXPECT_EQ(Convert(options, "in.npy", "codes.npy"), Expected({.conversion = conversion}))
            << rounding_name;
      }
    }
  }
}

TEST_F(ConvertCommand, TakesScaleAndSeed) {
  ArrayConversion how = {.conversion = {kFp16, Rounding::kStochastic}, .scale = 2e15f};
  how.random.seed = 18446744073709551615u;
  EXPECT_EQ(Convert({"--to", "fp16", "--rounding", "sr", "--scale", "2e15", "--seed",
                     "18446744073709551615"},
                    "in.npy", "codes.npy"),
            Expected(how));
  how.random.seed = 1;
  EXPECT_NE(ReadBytes(Path("codes.npy")), Expected(how));
}

TEST_F(ConvertCommand, DecodingUnscalesByTheReciprocal) {
  Convert({"--to", "bf16", "--scale", "3"}, "in.npy", "codes.npy");
  std::vector<uint16_t> codes(values_.size());
  EncodeArray({.conversion = {kBf16}, .scale = 3.0f}, values_, std::span<uint16_t>(codes));
  std::vector<float> decoded(values_.size());
  DecodeArray(kBf16, std::span<const uint16_t>(codes), decoded);
  for (float& value : decoded) value *= 1.0f / 3.0f;
  EXPECT_EQ(Convert({"--from", "bf16", "--scale", "3"}, "codes.npy", "back.npy"),
            MakeNpyHeader("<f4", shape_, true) + FloatBytes(decoded));
}

TEST_F(ConvertCommand, RefusesOptionsThatDecodingWouldIgnore) {
  for (const char* option :
       {"--rounding=rtz", "--overflow=inf", "--subnormals=flush", "--seed=1"}) {
    ExpectFailure({"convert", "--from", "fp16", option, Path("in.npy"), Path("back.npy")}, 2, {});
  }
}

TEST_F(ConvertCommand, WritesToStandardOutput) {
  EXPECT_EQ(Succeed({"convert", "--to", "bf16", Path("in.npy"), "-"}),
            Expected({.conversion = {kBf16}}));
}

TEST_F(ConvertCommand, RefusesCodesOfTheWrongWidth) {
  Convert({"--to", "tf32"}, "in.npy", "codes.npy");
  ExpectFailure({"convert", "--from", "fp16", Path("codes.npy"), Path("back.npy")}, 3,
                {"codes.npy", "no codes of fp16", "<u2", "<u4"});
  ExpectFailure({"convert", "--to", "fp16", Path("codes.npy"), Path("back.npy")}, 3, {"codes.npy"});
}

}  // namespace
}  // namespace dlsim
