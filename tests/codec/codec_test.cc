// SPDX-License-Identifier: Apache-2.0
// The scalar reference against an independent model in double arithmetic, and against hardware.
#include "dlsim/codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/boundaries.h"
#include "tests/support/double_oracle.h"
#include "tests/support/formats_under_test.h"

namespace dlsim {
namespace {

constexpr Rounding kDeterministic[] = {Rounding::kNearestEven, Rounding::kTowardZero,
                                       Rounding::kNearestAway, Rounding::kTowardPositive,
                                       Rounding::kTowardNegative};

constexpr uint32_t EncodeBits(const Format& format, uint32_t bits) {
  return Encode(MakeCodecSpec({format}), Rounding::kNearestEven, bits).code;
}

// The semantics are usable in constant expressions.
static_assert(EncodeBits(kFp16, 0x3F800000) == 0x3C00);
static_assert(EncodeBits(kBf16, 0x3F800000) == 0x3F80);
static_assert(EncodeBits(kCb16, 0x3F800000) == 0x3E00);
static_assert(Decode(MakeCodecSpec({kCb16}), 0x3E00) == 0x3F800000);

class CodecOfFormat : public testing::TestWithParam<NamedFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, CodecOfFormat, testing::ValuesIn(FormatsUnderTest()),
                         [](const auto& test) { return TestName(test.param); });

TEST_P(CodecOfFormat, DecodesEveryCodeAsDefined) {
  const Format& f = GetParam().format;
  const CodecSpec spec = MakeCodecSpec({f});
  for (uint64_t code = 0; code < uint64_t{1} << CodeBits(f); ++code) {
    const double expected = OracleDecode(f, static_cast<uint32_t>(code));
    const float decoded = std::bit_cast<float>(Decode(spec, static_cast<uint32_t>(code)));
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(decoded) : decoded == expected)
        << std::hex << code;
    if (!std::isnan(expected)) {
      ASSERT_EQ(std::signbit(decoded), std::signbit(expected)) << std::hex << code;
    }
  }
}

TEST_P(CodecOfFormat, EveryCodeRoundTripsInEveryMode) {
  const Format& f = GetParam().format;
  const CodecSpec spec = MakeCodecSpec({f});
  const uint32_t quiet_bit = 1u << (f.mantissa_bits - 1);
  for (uint64_t at = 0; at < uint64_t{1} << CodeBits(f); ++at) {
    const uint32_t code = static_cast<uint32_t>(at);
    const bool nan = Classify(spec, code) == CodeClass::kNan;
    for (int mode = 0; mode < 6; ++mode) {
      const Rounding rounding = static_cast<Rounding>(mode);
      const uint32_t random = code * 2654435761u;
      ASSERT_EQ(Encode(spec, rounding, Decode(spec, code), random).code,
                nan ? code | quiet_bit : code)
          << std::hex << code << " mode " << mode;
    }
  }
}

// Compares one conversion with the oracle: value and sign, and the overflow flag.
void ExpectAsOracle(const Conversion& conversion, const CodecSpec& spec, uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  const EncodeResult result = Encode(spec, conversion.rounding, bits);
  const double decoded = OracleDecode(conversion.format, result.code);
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(decoded)) << std::hex << bits;
    ASSERT_FALSE(result.overflows);
    return;
  }
  const bool saturate = conversion.overflow == Overflow::kSaturate;
  if (std::isinf(value)) {
    const double limit = HasInfinity(conversion.format) ? HUGE_VAL : std::nan("");
    const double expected = saturate ? OracleMax(conversion.format) : limit;
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(decoded)
                                     : decoded == std::copysign(expected, value));
    ASSERT_FALSE(result.overflows);
    return;
  }
  const double expected = OracleRound(conversion, value);
  ASSERT_TRUE(std::isnan(expected) ? std::isnan(decoded) : decoded == expected)
      << std::hexfloat << value << " gives " << decoded << ", expected " << expected;
  const bool code_is_negative = (result.code >> (CodeBits(conversion.format) - 1)) != 0;
  ASSERT_EQ(code_is_negative, std::signbit(value)) << std::hex << bits;
  if (!saturate) {
    ASSERT_EQ(result.overflows != 0, !std::isfinite(expected)) << value;
  } else {
    Conversion unbounded = conversion;
    unbounded.overflow = Overflow::kInfinity;
    if (!std::isfinite(OracleRound(unbounded, value))) {
      ASSERT_TRUE(result.overflows);
    }
  }
}

TEST_P(CodecOfFormat, AgreesWithDoubleArithmeticOnAllBoundaries) {
  const Format& f = GetParam().format;
  const std::vector<uint32_t> inputs = BoundaryBits(f);
  for (const Rounding rounding : kDeterministic) {
    for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
      for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
        const Conversion conversion = {f, rounding, overflow, subnormals};
        const CodecSpec spec = MakeCodecSpec(conversion);
        for (const uint32_t bits : inputs) {
          ASSERT_NO_FATAL_FAILURE(ExpectAsOracle(conversion, spec, bits));
        }
      }
    }
  }
}

TEST_P(CodecOfFormat, AgreesWithDoubleArithmeticOnASampleOfAllInputs) {
  const std::vector<uint32_t> inputs = StratifiedBits(20011);
  for (const Rounding rounding : kDeterministic) {
    const Conversion conversion = {GetParam().format, rounding};
    const CodecSpec spec = MakeCodecSpec(conversion);
    for (const uint32_t bits : inputs) {
      ASSERT_NO_FATAL_FAILURE(ExpectAsOracle(conversion, spec, bits));
    }
  }
}

TEST_P(CodecOfFormat, NanKeepsSignAndTopMantissaBitsAndBecomesQuiet) {
  const Format& f = GetParam().format;
  const CodecSpec spec = MakeCodecSpec({f});
  const uint32_t dropped = static_cast<uint32_t>(23 - f.mantissa_bits);
  for (uint32_t payload : {1u, 0x1FFFu, 0xFFFFu, 0x200000u, 0x400000u, 0x400001u, 0x7FFFFFu}) {
    const uint32_t expected = QuietNanCode(f) | (payload >> dropped);
    const uint32_t sign = 1u << (CodeBits(f) - 1);
    for (int mode = 0; mode < 6; ++mode) {
      const Rounding rounding = static_cast<Rounding>(mode);
      EXPECT_EQ(Encode(spec, rounding, 0x7F800000u | payload, ~0u).code, expected);
      EXPECT_EQ(Encode(spec, rounding, 0xFF800000u | payload, ~0u).code, sign | expected);
    }
  }
}

// Smallest random word that rounds up, counting from the top: the number of words that do.
uint64_t CountRoundingUp(const CodecSpec& spec, uint32_t bits) {
  const uint32_t down = Encode(spec, Rounding::kTowardZero, bits).code;
  const auto up = [&](uint64_t random) {
    return Encode(spec, Rounding::kStochastic, bits, static_cast<uint32_t>(random)).code != down;
  };
  // With subnormals a large word rounds up, without them a small one: bisect either way.
  const bool up_at_top = up(0xFFFFFFFF), up_at_zero = up(0);
  if (up_at_top == up_at_zero) return up_at_top ? uint64_t{1} << 32 : 0;
  uint64_t low = 0, high = 0xFFFFFFFF;
  while (high - low > 1) {
    const uint64_t middle = (low + high) / 2;
    (up(middle) == up_at_zero ? low : high) = middle;
  }
  return up_at_zero ? high : (uint64_t{1} << 32) - high;
}

TEST_P(CodecOfFormat, StochasticRoundsUpWithProbabilityEqualToTheDistance) {
  const Format& f = GetParam().format;
  const CodecSpec spec = MakeCodecSpec({f});
  for (const uint32_t bits : StratifiedBits(4000037)) {
    const float value = std::bit_cast<float>(bits);
    if (!std::isfinite(value) || std::fabs(value) > OracleMax(f)) continue;
    const double lo = std::fabs(OracleRound({f, Rounding::kTowardZero}, value));
    const Rounding away = value < 0 ? Rounding::kTowardNegative : Rounding::kTowardPositive;
    const double hi = std::fabs(OracleRound({f, away}, value));
    const double distance = lo == hi ? 0 : (std::fabs(double{value}) - lo) / (hi - lo);
    ASSERT_EQ(CountRoundingUp(spec, bits), static_cast<uint64_t>(std::ldexp(distance, 32)))
        << std::hexfloat << value;
  }
}

TEST(Codec, TableMatchesTheDocumentedCodes) {
  struct Row {
    Format format;
    uint32_t one, max, infinity, nan;
    double max_value, min_normal, min_subnormal, overflows_at;
  };
  const Row rows[] = {
      {kFp16, 0x3C00, 0x7BFF, 0x7C00, 0x7E00, 65504, 0x1p-14, 0x1p-24, 65520},
      {kBf16, 0x3F80, 0x7F7F, 0x7F80, 0x7FC0, (2 - 0x1p-7) * 0x1p127, 0x1p-126, 0x1p-133,
       (2 - 0x1p-8) * 0x1p127},
      {kCb16, 0x3E00, 0x7DFF, 0x7E00, 0x7F00, 4290772992.0, 0x1p-30, 0x1p-39, 4292870144.0},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(EncodeBits(row.format, 0x3F800000), row.one);
    EXPECT_EQ(MaxFiniteCode(row.format), row.max);
    EXPECT_EQ(OverflowCode(row.format), row.infinity);
    EXPECT_EQ(QuietNanCode(row.format), row.nan);
    EXPECT_EQ(MaxFinite(row.format), row.max_value);
    EXPECT_EQ(MinNormal(row.format), row.min_normal);
    EXPECT_EQ(MinPositive(row.format), row.min_subnormal);
    EXPECT_EQ(OverflowThreshold(row.format), row.overflows_at);
  }
}

TEST(Codec, OcpAndIbmRowsMatchTheirPapers) {
  const Format e4m3 = ParseFormat("fp8-e4m3").format;
  EXPECT_EQ(MaxFinite(e4m3), 448);
  EXPECT_EQ(MinPositive(e4m3), 0x1p-9);
  EXPECT_EQ(EncodeBits(e4m3, std::bit_cast<uint32_t>(464.0f)), 0x7Eu) << "tie to even";
  EXPECT_EQ(EncodeBits(e4m3, std::bit_cast<uint32_t>(465.0f)), 0x7Fu) << "NaN";
  EXPECT_EQ(MaxFinite(ParseFormat("fp8-e5m2").format), 57344);
  const Format dlfloat = ParseFormat("dlfloat16").format;
  EXPECT_EQ(MaxFinite(dlfloat), 0x1p33 - 0x1p24);
  EXPECT_EQ(MinPositive(dlfloat), 0x1p-31 + 0x1p-40);
}

TEST(Codec, Fp16AtAScaleUnderflowsLikeCb16AtAScale2ToThe15Smaller) {
  for (const uint32_t bits : StratifiedBits(10007)) {
    const float value = std::bit_cast<float>(bits);
    if (std::isnan(value)) continue;
    const auto zero = [&](const Format& f, float scale) {
      const CodecSpec spec = MakeCodecSpec({f});
      const uint32_t code =
          Encode(spec, Rounding::kNearestEven, std::bit_cast<uint32_t>(value * scale)).code;
      return Classify(spec, code) == CodeClass::kZero;
    };
    ASSERT_EQ(zero(kFp16, 0x1p20f), zero(kCb16, 0x1p5f)) << std::hexfloat << value;
  }
}

TEST(Format, ParsesNamesAliasesAndWidths) {
  EXPECT_EQ(ParseFormat("half").name, "fp16");
  EXPECT_EQ(ParseFormat("cbfloat16").format, kCb16);
  EXPECT_EQ(ParseFormat("e6m9").format, kCb16);
  EXPECT_EQ(ParseFormat("e5m10").name, "e5m10");
  for (const char* bad : {"", "fp17", "e", "e5", "e5m", "e1m3", "e9m3", "e5m0", "e5m23", "e5m10x",
                          "e-5m10", "E5M10", "e5m99999999999"}) {
    EXPECT_THROW(ParseFormat(bad), Error) << bad;
  }
}

}  // namespace
}  // namespace dlsim
