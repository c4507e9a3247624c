// SPDX-License-Identifier: Apache-2.0
// Thresholds are where conversions change their outcome.
#include "src/histogram/thresholds.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "dlsim/error.h"
#include "src/base/first_magnitude.h"
#include "src/histogram/histogram_question.h"
#include "tests/support/formats_under_test.h"

namespace dlsim {
namespace {

constexpr Rounding kDeterministic[] = {Rounding::kNearestEven, Rounding::kTowardZero,
                                       Rounding::kNearestAway, Rounding::kTowardPositive,
                                       Rounding::kTowardNegative};
constexpr float kScales[] = {
    0x1p-149f, 0x1p-126f, 0x1p-14f, 1.0f, 0x1.8p3f, 0x1p15f,
    2e15f,     0x1p100f,  0x1p127f, 0.0f, -0x1p4f,  std::numeric_limits<float>::infinity()};

std::vector<NamedFormat> Formats() {
  std::vector<NamedFormat> formats = FormatsUnderTest();
  formats.push_back(ParseFormat("e6m5"));
  return formats;
}

std::vector<Conversion> DeterministicConversions(const Format& format) {
  std::vector<Conversion> conversions;
  for (const Rounding rounding : kDeterministic) {
    for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
      for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
        conversions.push_back({format, rounding, overflow, subnormals});
      }
    }
  }
  return conversions;
}

// Where a magnitude is among thresholds, by the definition.
int KindOf(const Conversion& conversion, float scale, uint32_t bits) {
  const CodecSpec spec = MakeCodecSpec(conversion);
  const float scaled = std::bit_cast<float>(bits) * scale;
  const EncodeResult result = Encode(spec, conversion.rounding, std::bit_cast<uint32_t>(scaled));
  const CodeClass kind = Classify(spec, result.code);
  if (result.overflows || std::isinf(scaled)) return 3;
  return kind == CodeClass::kZero ? 0 : kind == CodeClass::kSubnormal ? 1 : 2;
}

int KindOf(const Thresholds& t, uint32_t magnitude) {
  return magnitude >= t.overflow ? 3 : magnitude >= t.normal ? 2 : magnitude >= t.nonzero;
}

class ThresholdsOfFormat : public testing::TestWithParam<NamedFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, ThresholdsOfFormat, testing::ValuesIn(Formats()),
                         [](const auto& test) { return TestName(test.param); });

TEST_P(ThresholdsOfFormat, AgreeWithEncodingOnADenseSampleAndAtEachStep) {
  for (const Conversion& conversion : DeterministicConversions(GetParam().format)) {
    for (const float scale : kScales) {
      for (const Sign sign : {Sign::kPositive, Sign::kNegative}) {
        const Thresholds t = FindThresholds(conversion, scale, sign);
        const uint32_t sign_bit = sign == Sign::kNegative ? codec::kSignBit : 0;
        const auto check = [&](uint32_t magnitude) {
          if (magnitude == 0 || magnitude >= codec::kInfinityBits) return;
          ASSERT_EQ(KindOf(t, magnitude), KindOf(conversion, scale, magnitude | sign_bit))
              << std::hexfloat << scale << " " << std::bit_cast<float>(magnitude | sign_bit);
        };
        for (uint32_t bits = 1; bits < codec::kInfinityBits; bits += 4194301) check(bits);
        for (const uint32_t edge : {t.nonzero, t.normal, t.overflow}) {
          for (uint32_t offset = 0; offset < 3; ++offset) check(edge + offset - 1);
        }
      }
    }
  }
}

bool IsDirected(Rounding rounding) {
  return rounding == Rounding::kTowardPositive || rounding == Rounding::kTowardNegative;
}

TEST(Thresholds, SplitTheSignsForDirectedRoundingOnly) {
  for (const Rounding rounding : kDeterministic) {
    const Conversion conversion = {kFp16, rounding};
    const bool same = FindThresholds(conversion, 8, Sign::kPositive) ==
                      FindThresholds(conversion, 8, Sign::kNegative);
    EXPECT_EQ(same, !IsDirected(rounding));
  }
}

TEST(Thresholds, AreThoseOfTheFormat) {
  const Thresholds t = FindThresholds({kFp16}, 1.0f, Sign::kPositive);
  EXPECT_EQ(t.nonzero, std::bit_cast<uint32_t>(0x1p-25f) + 1);
  EXPECT_EQ(t.normal, std::bit_cast<uint32_t>(0x1p-14f - 0x1p-25f));
  EXPECT_EQ(t.overflow, std::bit_cast<uint32_t>(65520.0f));
}

// 2^-24 * 2^-15 = 2^-39: the smallest subnormals of both formats.
TEST(Thresholds, OfFp16AtAScale32768TimesLargerUnderflowWithCb16) {
  for (int k = -20; k <= 40; ++k) {
    const Thresholds fp16 = FindThresholds({kFp16}, std::ldexp(1.0f, 15 + k), Sign::kPositive);
    const Thresholds cb16 = FindThresholds({kCb16}, std::ldexp(1.0f, k), Sign::kPositive);
    EXPECT_EQ(fp16.nonzero, cb16.nonzero) << k;
  }
}

TEST_P(ThresholdsOfFormat, AreTheSameWhateverTheGuess) {
  constexpr uint32_t kOne = 0x3F800000;
  const Thresholds guesses[] = {{}, {kOne, 0, kOne}, {codec::kInfinityBits, ~0u, 1}};
  for (const Conversion& conversion : DeterministicConversions(GetParam().format)) {
    for (const float scale : kScales) {
      const Thresholds expected = FindThresholds(conversion, scale, Sign::kNegative);
      for (const Thresholds& guess : guesses) {
        EXPECT_EQ(FindThresholds(conversion, scale, Sign::kNegative, guess), expected);
      }
      EXPECT_EQ(FindThresholds(conversion, scale, Sign::kNegative, expected), expected);
    }
  }
}

TEST_P(ThresholdsOfFormat, AQuestionNearAnotherIsTheSame) {
  for (const Conversion& conversion : DeterministicConversions(GetParam().format)) {
    for (const float from : kScales) {
      const HistogramQuestion near(conversion, from);
      for (const float scale : kScales) {
        const HistogramQuestion question(conversion, scale, &near), alone(conversion, scale);
        for (const Sign sign : kSigns) {
          const HistogramQuestion::OfSign &a = question.Of(sign), &b = alone.Of(sign);
          EXPECT_EQ(static_cast<const Thresholds&>(a), static_cast<const Thresholds&>(b));
          EXPECT_EQ(static_cast<const Thresholds&>(a), FindThresholds(conversion, scale, sign));
          EXPECT_EQ(a.largest, b.largest);
          EXPECT_EQ(a.nonfinite, b.nonfinite);
        }
      }
    }
  }
}

TEST(FirstMagnitude, IsFoundFromAnyGuessAndFastFromAGoodOne) {
  const uint32_t places[] = {
      1, 2, 1000, 0x3F800000, codec::kInfinityBits - 1, codec::kInfinityBits};
  for (const uint32_t place : places) {
    for (const uint32_t guess : {0u, 1u, 2u, 999u, 1001u, 0x3F7FFFFFu, 0x7F7FFFFFu, ~0u, place}) {
      int calls = 0;
      const auto holds = [&](uint32_t magnitude) { return ++calls, magnitude >= place; };
      EXPECT_EQ(FirstMagnitudeNear(guess, holds), place) << guess;
      EXPECT_LE(calls, guess == place ? 2 : 64);
    }
  }
}

TEST(Thresholds, RefuseWhatTheyCannotAnswer) {
  EXPECT_THROW(FindThresholds({kFp16, Rounding::kStochastic}, 1, Sign::kPositive), Error);
  EXPECT_THROW(FindThresholds({kFp16}, std::nanf(""), Sign::kPositive), Error);
}

}  // namespace
}  // namespace dlsim
