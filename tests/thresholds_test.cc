// SPDX-License-Identifier: Apache-2.0
// Counting at thresholds equals Measure, counter for counter and digit for digit.
#include "dlsim/thresholds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "boundaries.h"
#include "dlsim/error.h"
#include "dlsim/simd.h"
#include "formats_under_test.h"
#include "on_target.h"

#ifdef _OPENMP
#include <omp.h>
#endif

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

// Finite values over many binades, as gradients have; optionally with infinities and NaNs.
std::vector<float> GradientLike(size_t count, bool with_nonfinite) {
  std::mt19937 random(20240608);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-150, 120);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const int e = i % 3 == 0 ? exponent(random) : exponent(random) / 8;
    values[i] = i % 19 == 0 ? -0.0f : std::ldexp(normal(random), e);
    if (with_nonfinite && i % 5001 == 500) values[i] = -std::numeric_limits<float>::infinity();
    if (with_nonfinite && i % 5003 == 501) values[i] = std::nanf("");
  }
  return values;
}

void ExpectSame(const MeasuredCounts& counts, size_t question, const TensorStats& stats) {
  const auto digits = [](double x) { return std::bit_cast<uint64_t>(x); };
  EXPECT_EQ(counts.input.elements, stats.elements);
  EXPECT_EQ(counts.input.zeros, stats.zeros);
  EXPECT_EQ(counts.input.nan, stats.nan);
  EXPECT_EQ(counts.input.inf, stats.inf);
  EXPECT_EQ(counts.input.absmax, stats.absmax);
  EXPECT_EQ(digits(counts.input.sum_of_squares), digits(stats.sum_of_squares));
  const OutcomeCounts& outcome = counts.outcomes[question];
  EXPECT_EQ(outcome.underflow, stats.underflow);
  EXPECT_EQ(outcome.subnormal, stats.subnormal);
  EXPECT_EQ(outcome.overflow, stats.overflow);
  EXPECT_EQ(outcome.nonfinite_outputs, stats.nonfinite_outputs);
  EXPECT_EQ(digits(outcome.underflow_sum_of_squares), digits(stats.underflow_sum_of_squares));
}

void ExpectMeasuresAlike(std::span<const float> values, std::span<const Measurement> questions) {
  const MeasuredCounts counts = MeasureCounts(values, questions);
  ASSERT_EQ(counts.outcomes.size(), questions.size());
  for (size_t q = 0; q < questions.size(); ++q) {
    ExpectSame(counts, q, Measure(values, questions[q]));
  }
}

// Compares what is below edges with the definition.
void ExpectRightBelow(std::span<const float> values, const std::vector<uint32_t>& edges) {
  const EdgeSet set(edges, edges);
  const EdgeStats stats = MeasureEdges(values, set);
  for (size_t e = 0; e < set.counted().size(); ++e) {
    const auto below = [&](float value) {
      const uint32_t bits = std::bit_cast<uint32_t>(std::fabs(value));
      return bits != 0 && bits < set.counted()[e];
    };
    ASSERT_EQ(stats.below[e],
              static_cast<uint64_t>(std::count_if(values.begin(), values.end(), below)));
    double sum = 0;
    for (size_t at = 0; at < values.size(); at += kChunkElements) {
      std::vector<float> chunk(values.begin() + static_cast<std::ptrdiff_t>(at),
                               values.begin() + static_cast<std::ptrdiff_t>(
                                                    std::min(values.size(), at + kChunkElements)));
      for (float& value : chunk) value = below(value) ? value : 0.0f;
      sum += SumOfSquaresOfChunk(chunk);
    }
    ASSERT_EQ(std::bit_cast<uint64_t>(stats.squares_below[e]), std::bit_cast<uint64_t>(sum));
  }
}

// Where a magnitude stands among thresholds, by the definition.
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

TEST(Thresholds, SplitTheSignsForDirectedRoundingOnly) {
  for (const Rounding rounding : kDeterministic) {
    const Conversion conversion = {kFp16, rounding};
    const bool same = FindThresholds(conversion, 8, Sign::kPositive) ==
                      FindThresholds(conversion, 8, Sign::kNegative);
    EXPECT_EQ(same, CanCount({conversion, 8, {}}));
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

TEST(Thresholds, RefuseWhatTheyCannotAnswer) {
  const std::vector<float> values(10, 1.0f);
  const Measurement stochastic = {{kFp16, Rounding::kStochastic}};
  EXPECT_THROW(MeasureCounts(values, std::span(&stochastic, 1)), Error);
  EXPECT_THROW(FindThresholds(stochastic.conversion, 1, Sign::kPositive), Error);
  EXPECT_THROW(FindThresholds({kFp16}, std::nanf(""), Sign::kPositive), Error);
  EXPECT_THROW(EdgeSet({0x7F800001}, {}), Error);
}

class CountsOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, CountsOnTarget, testing::ValuesIn(SupportedSimdTargets()),
                         [](const auto& test) { return test.param; });

TEST_P(CountsOnTarget, EqualMeasureForEveryFormatOptionAndScale) {
  std::vector<Measurement> questions;
  for (const NamedFormat& format : Formats()) {
    for (const Conversion& conversion : DeterministicConversions(format.format)) {
      for (const float scale : kScales) questions.push_back({conversion, scale, {}});
    }
  }
  for (const bool with_nonfinite : {false, true}) {
    ExpectMeasuresAlike(GradientLike(500, with_nonfinite), questions);
  }
}

TEST_P(CountsOnTarget, EqualMeasureForAllLengthsAndAlignments) {
  std::vector<Measurement> questions;
  for (const Format& format : {kFp16, kBf16, kCb16, ParseFormat("fp8-e4m3").format}) {
    for (int k = -8; k <= 48; k += 8) questions.push_back({{format}, std::ldexp(1.0f, k), {}});
  }
  questions.push_back({{kFp16, Rounding::kTowardNegative}, 16.0f, {}});
  const std::vector<float> values = GradientLike(131080, true);
  for (size_t length = 0; length <= 100; ++length) {
    ExpectMeasuresAlike(std::span(values).subspan(length % 9, length), questions);
  }
  const std::vector<size_t> lengths = {4095, 4096, 4097, 65535, 65536, 65537, 131073};
  for (const size_t length : lengths) {
    ExpectMeasuresAlike(std::span(values).subspan(3, length), questions);
  }
}

TEST_P(CountsOnTarget, EqualMeasureAtTheBoundariesOfTheFormat) {
  const std::vector<Measurement> questions = {{{kFp16}, 1, {}},
                                              {{kFp16}, 2, {}},
                                              {{kBf16}, 1, {}},
                                              {{kBf16}, 0x1p-3f, {}},
                                              {{kCb16}, 1, {}}};
  for (const Format& format : {kFp16, kBf16, kCb16}) {
    std::vector<float> values;
    for (const uint32_t bits : BoundaryBits(format)) values.push_back(std::bit_cast<float>(bits));
    ExpectMeasuresAlike(values, questions);
    std::erase_if(values, [](float value) { return !std::isfinite(value); });
    ExpectMeasuresAlike(values, questions);
  }
}

TEST_P(CountsOnTarget, AnswerChunksWhollyOnOneSide) {
  std::vector<Measurement> questions;
  for (int k = 0; k < 40; ++k) questions.push_back({{kFp16}, std::ldexp(1.0f, k), {}});
  for (const float value : {0.0f, 0x1p-30f, 1.0f, -0x1p-149f, std::numeric_limits<float>::max()}) {
    ExpectMeasuresAlike(std::vector<float>(5000, value), questions);
  }
}

#ifdef _OPENMP
TEST(Thresholds, CountAlikeOnAnyNumberOfThreads) {
  const std::vector<float> values = GradientLike(300001, true);
  const std::vector<Measurement> questions = {{{kFp16}, 1, {}}, {{kCb16}, 0x1p20f, {}}};
  const CountingQuestions counting(questions);
  std::vector<EdgeStats> stats;
  const int threads = omp_get_max_threads();
  for (const int count : {1, 2, 5}) {
    omp_set_num_threads(count);
    stats.push_back(MeasureEdges(values, counting.edges()));
  }
  omp_set_num_threads(threads);
  for (const EdgeStats& other : stats) {
    EXPECT_EQ(stats[0].below, other.below);
    EXPECT_EQ(stats[0].squares_below, other.squares_below);
    EXPECT_EQ(stats[0].input.sum_of_squares, other.input.sum_of_squares);
  }
}
#endif

TEST_P(CountsOnTarget, ServeManyEdges) {
  const std::vector<float> values = GradientLike(9001, true);
  std::mt19937 random(7);
  std::vector<uint32_t> edges = {0, 1, codec::kInfinityBits};
  for (int i = 0; i < 1000; ++i) {
    edges.push_back(static_cast<uint32_t>(random() % codec::kInfinityBits));
  }
  ExpectRightBelow(values, edges);
}

// Few or many values lie between an edge and 2^k, beside zeros, over some or all binades.
TEST_P(CountsOnTarget, TellEdgesFromThePowersOfTwoNearby) {
  constexpr uint32_t kOffsets[] = {0u - 0x4001, 0u - 0x4000, 0u - 0x3FFF, 0u - 0x2000,
                                   0u - 1,      0,           1,           2};
  std::mt19937 random(11);
  for (const uint32_t binades : {12u, 100u, 127u, 128u, 254u}) {
    for (const uint32_t one_near_in : {1u, 16u, 40u, 10000u}) {
      const uint32_t first = (254 - binades) / 2 + 1;
      const auto power = [&] { return (first + random() % binades) << 23; };
      const auto near = [&] { return power() + kOffsets[random() % 8]; };
      std::vector<float> values(4096 + 1024 + 33);
      for (float& value : values) {
        const uint32_t magnitude = static_cast<uint32_t>(
            random() % one_near_in == 0 ? near() : (first << 23) + random() % (binades << 23));
        value = random() % 50 == 0 ? 0.0f : -std::bit_cast<float>(magnitude);
      }
      std::vector<uint32_t> edges;
      for (int i = 0; i < 40; ++i) edges.push_back(static_cast<uint32_t>(near()));
      ExpectRightBelow(values, edges);
    }
  }
}

}  // namespace
}  // namespace dlsim
