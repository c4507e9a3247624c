// SPDX-License-Identifier: Apache-2.0
#include "dlsim/histogram.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "dlsim/ladder.h"
#include "dlsim/measure.h"
#include "src/histogram/histogram_question.h"
#include "src/histogram/histogram_sums.h"
#include "tests/support/formats_under_test.h"
#include "tests/support/on_target.h"
#include "tests/support/same_stats.h"
#include "tests/support/special_values.h"

namespace dlsim {
namespace {

// Values of all binades, subnormal ones, zeros, and some that are not finite.
std::vector<float> AnyValues(size_t count) {
  std::mt19937 random(7);
  std::vector<float> values = {0.0f, -0.0f, kInf, -kInf, kQuietNan};
  while (values.size() < count) values.push_back(std::bit_cast<float>(uint32_t(random())));
  return values;
}

Histogram HistogramOf(std::span<const float> values, const HistogramEdges& edges) {
  HistogramCounter counter(edges);
  counter.Add(values);
  return counter.Take();
}

TEST(Histogram, AnswersEveryQuestionOfTheLadderAsMeasuringDoes) {
  const Ladder ladder = DefaultLadder();
  const HistogramEdges edges = EdgesOf(ladder);
  const std::vector<float> values = AnyValues(3000);
  const Histogram histogram = HistogramOf(values, edges);
  const HistogramIndex index(histogram, edges);
  for (const NamedFormat& format : ladder.formats) {
    for (const Rounding rounding : ladder.roundings) {
      for (const Subnormals subnormals : ladder.subnormals) {
        for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
          const Conversion conversion = {format.format, rounding, overflow, subnormals};
          for (size_t s = 0; s < ladder.scales.size(); s += 7) {
            const float scale = ladder.scales[s];
            const TensorStats measured = Measure(values, {conversion, scale, {}});
            const HistogramAnswer answer = HistogramQuestion(conversion, scale).Ask(index);
            SCOPED_TRACE(format.name + " at " + std::to_string(scale) + " mode " +
                         std::to_string(static_cast<int>(rounding)));
            ASSERT_TRUE(answer.exact());
            ExpectSameInHistogram(answer.stats, measured);
            ASSERT_DOUBLE_EQ(answer.stats.sum_of_squares, measured.sum_of_squares);
            ASSERT_DOUBLE_EQ(answer.stats.underflow_sum_of_squares,
                             measured.underflow_sum_of_squares);
            if (std::isfinite(measured.quantized_sum_of_squares)) {
              ASSERT_LE(answer.quantized_squares.low, measured.quantized_sum_of_squares);
              ASSERT_GE(answer.quantized_squares.high, measured.quantized_sum_of_squares);
            }
          }
        }
      }
    }
  }
}

TEST(Histogram, BracketsTheQuantizedSumOfSquares) {
  const Ladder ladder = DefaultLadder();
  const HistogramEdges edges = EdgesOf(ladder);
  std::vector<float> values;
  for (const float value : AnyValues(4000)) {
    if (std::fabs(value) < 1e9f) values.push_back(value);
  }
  const Histogram histogram = HistogramOf(values, edges);
  const HistogramIndex index(histogram, edges);
  size_t finite = 0;
  for (const NamedFormat& format : ladder.formats) {
    for (const Rounding rounding : ladder.roundings) {
      for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
        for (const float scale : {1e-6f, 0.25f, 1.0f, 3.0f, 1e5f, 2e15f}) {
          const Conversion conversion = {format.format, rounding, overflow, Subnormals::kKeep};
          const double measured = Measure(values, {conversion, scale, {}}).quantized_sum_of_squares;
          const HistogramAnswer answer = HistogramQuestion(conversion, scale).Ask(index);
          EXPECT_LE(answer.quantized_squares.low, measured);
          EXPECT_GE(answer.quantized_squares.high, measured);
          if (!std::isfinite(measured)) continue;
          ++finite;
          EXPECT_LT(answer.quantized_squares.high, 1.2 * answer.quantized_squares.low)
              << format.name << ' ' << scale << ' ' << static_cast<int>(rounding);
        }
      }
    }
  }
  EXPECT_GT(finite, 50u);
}

TEST(Histogram, BracketsTheError) {
  const Ladder ladder = DefaultLadder();
  const HistogramEdges edges = EdgesOf(ladder);
  const std::vector<float> values = AnyValues(4000);
  const Histogram histogram = HistogramOf(values, edges);
  const HistogramIndex index(histogram, edges);
  for (const NamedFormat& format : FormatsUnderTest()) {
    for (int mode = 0; mode < 5; ++mode) {
      for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
        for (const float scale : {1e-6f, 0.25f, 1.0f, 3.0f, 1e5f, 2e15f}) {
          const Conversion conversion = {format.format, static_cast<Rounding>(mode), overflow};
          const double measured = Measure(values, {conversion, scale, {}}).error_sum_of_squares;
          const HistogramAnswer answer = HistogramQuestion(conversion, scale).Ask(index);
          SCOPED_TRACE(format.name + " at " + std::to_string(scale) + " mode " +
                       std::to_string(mode));
          EXPECT_LE(answer.error_sum_of_squares.low, measured * (1 + 1e-12));
          EXPECT_GE(answer.error_sum_of_squares.high, measured * (1 - 1e-12));
          EXPECT_LE(answer.error_sum_of_squares.low,
                    answer.stats.error_sum_of_squares * (1 + 1e-12));
          EXPECT_GE(answer.error_sum_of_squares.high,
                    answer.stats.error_sum_of_squares * (1 - 1e-12));
        }
      }
    }
  }
}

// Gradients of one size lose about what values spread evenly lose; in a binade more are small.
TEST(Histogram, EstimatesTheErrorOfATensor) {
  const HistogramEdges edges = EdgesOf(DefaultLadder());
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 1e-4f);
  std::vector<float> values(20000);
  for (float& value : values) value = normal(random);
  const Histogram histogram = HistogramOf(values, edges);
  const HistogramIndex index(histogram, edges);
  for (const Format& format : {kFp16, kBf16, kCb16}) {
    for (int k = -24; k <= 12; ++k) {
      const float scale = std::ldexp(1.0f, k);
      const double measured = Measure(values, {{format}, scale, {}}).error_sum_of_squares;
      const double estimate =
          HistogramQuestion({format}, scale).Ask(index).stats.error_sum_of_squares;
      EXPECT_NEAR(estimate, measured, 0.25 * measured) << "at 2^" << k;
    }
  }
}

TEST(Histogram, BracketsTheSquaresOfInfinitiesThatSaturate) {
  const HistogramEdges edges({});
  const std::vector<std::vector<float>> arrays = {
      {kInf}, {kInf, -kInf, 1.0f}, {-kInf, 0.0f, 1e-9f}};
  for (const std::vector<float>& values : arrays) {
    const Histogram histogram = HistogramOf(values, edges);
    const HistogramIndex index(histogram, edges);
    for (const char* name : {"fp16", "bf16", "cb16", "fp8-e4m3"}) {
      for (const float scale : {0.25f, 3.0f, 1e5f, 1e-38f}) {
        const Conversion conversion = {ParseFormat(name).format, Rounding::kNearestEven,
                                       Overflow::kSaturate, Subnormals::kKeep};
        const double measured = Measure(values, {conversion, scale, {}}).quantized_sum_of_squares;
        const HistogramAnswer answer = HistogramQuestion(conversion, scale).Ask(index);
        EXPECT_LE(answer.quantized_squares.low, measured) << name << ' ' << scale;
        EXPECT_GE(answer.quantized_squares.high, measured) << name << ' ' << scale;
      }
    }
  }
}

TEST(Histogram, BracketsTheAnswersOfOtherQuestions) {
  const HistogramEdges edges({});
  const std::vector<float> values = AnyValues(5000);
  const Histogram histogram = HistogramOf(values, edges);
  const HistogramIndex index(histogram, edges);
  bool inexact = false;
  for (const float scale : {1.0f, 3.0f, 1e5f, 1e-7f}) {
    const Conversion conversion = {kFp16};
    const TensorStats measured = Measure(values, {conversion, scale, {}});
    const HistogramAnswer answer = HistogramQuestion(conversion, scale).Ask(index);
    inexact |= !answer.exact();
    EXPECT_LE(answer.underflow.low, measured.underflow);
    EXPECT_GE(answer.underflow.high, measured.underflow);
    EXPECT_LE(answer.subnormal.low, measured.subnormal);
    EXPECT_GE(answer.subnormal.high, measured.subnormal);
    EXPECT_LE(answer.overflow.low, measured.overflow);
    EXPECT_GE(answer.overflow.high, measured.overflow);
    EXPECT_LE(answer.underflow_sum_of_squares.low, measured.underflow_sum_of_squares * (1 + 1e-12));
    EXPECT_GE(answer.underflow_sum_of_squares.high,
              measured.underflow_sum_of_squares * (1 - 1e-12));
  }
  EXPECT_TRUE(inexact);
}

TEST(Histogram, OfPartsMergeToThatOfTheWhole) {
  const HistogramEdges edges({std::bit_cast<uint32_t>(1.5f)});
  const std::vector<float> values = AnyValues(2000);
  HistogramCounter first(edges), second(edges);
  first.Add(std::span(values).subspan(0, 700));
  second.Add(std::span(values).subspan(700));
  HistogramSums sums = TakeSums(second);
  sums.Merge(TakeSums(first));
  EXPECT_EQ(sums.ToHistogram(edges), HistogramOf(values, edges));
}

// Edges that repeat from binade to binade, those that do not, few of them and none.
std::vector<HistogramEdges> SetsOfEdges() {
  std::mt19937 random(3);
  const auto any = [&](size_t count, uint32_t binades) {
    std::vector<uint32_t> edges;
    while (edges.size() < count) {
      edges.push_back(static_cast<uint32_t>((127u << 23) - random() % (binades << 23)));
    }
    return HistogramEdges(edges);
  };
  std::vector<uint32_t> cluster, ends;
  for (uint32_t binade = 100; binade < 140; ++binade) {
    for (uint32_t i = 0; i < 9; ++i) cluster.push_back((binade << 23) + 0x123456 + i * i);
    ends.push_back(binade << 23 | 1);
    ends.push_back((binade + 1) << 23 | codec::kMantissaMask);
  }
  std::vector<HistogramEdges> sets = {EdgesOf(DefaultLadder()), HistogramEdges({}),
                                      HistogramEdges(cluster), HistogramEdges(ends)};
  for (const size_t count : {1u, 3u, 8u, 30u, 1000u}) {
    for (const uint32_t binades : {4u, 90u}) sets.push_back(any(count, binades));
  }
  return sets;
}

// Arrays of all kinds that the kernels tell apart.
std::vector<std::vector<float>> KindsOfValues() {
  std::mt19937 random(20);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> kinds(9);
  for (size_t i = 0; i < 3000; ++i) {
    const float x = normal(random);
    const uint32_t bits = static_cast<uint32_t>(random());
    kinds[0].push_back(x);
    kinds[1].push_back(std::ldexp(x, -static_cast<int>(bits % 60)));
    kinds[2].push_back(bits % 7 == 0 ? x : -0.0f);
    kinds[3].push_back(bits % 500 == 0 ? kQuietNan : bits % 700 == 0 ? -kInf : x);
    kinds[4].push_back(std::bit_cast<float>(bits & 0x80FFFFFF));  // half of them subnormal
    kinds[5].push_back(std::bit_cast<float>((bits & 0x87800000) | 0x35E5C6 | bits % 4));
    kinds[6].push_back(i < 2000 ? 0.0f : -x);
    kinds[7].push_back(std::bit_cast<float>(bits));
    kinds[8].push_back(std::bit_cast<float>(i < 1500 ? 0x7F7FFFFFu : 0xFF7FFFFFu));
  }
  return kinds;
}

class HistogramOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HistogramOnTarget, testing::ValuesIn(SupportedSimdTargets()),
                         [](const auto& test) { return test.param; });

Histogram ReferenceOf(std::span<const float> values, const HistogramEdges& edges) {
  HistogramCounter counter(edges);
  AddReference(counter, values);
  return counter.Take();
}

TEST_P(HistogramOnTarget, CountsAsTheReferenceDoes) {
  for (const HistogramEdges& edges : SetsOfEdges()) {
    for (const std::vector<float>& values : KindsOfValues()) {
      ASSERT_EQ(HistogramOf(values, edges), ReferenceOf(values, edges));
    }
  }
}

TEST_P(HistogramOnTarget, CountsTheNeighborsOfEveryEdgeAsTheReferenceDoes) {
  for (const HistogramEdges& edges : SetsOfEdges()) {
    std::vector<float> values;
    for (const uint32_t edge : edges.bits()) {
      for (const uint32_t bits : {edge - 1, edge, edge + 1}) {
        values.push_back(std::bit_cast<float>(bits));
        values.push_back(-values.back());
      }
    }
    ASSERT_EQ(HistogramOf(values, edges), ReferenceOf(values, edges));
  }
}

TEST_P(HistogramOnTarget, CountsAllLengthsAndAlignmentsAsTheReferenceDoes) {
  const std::vector<std::vector<float>> kinds = KindsOfValues();
  for (const HistogramEdges& edges : {EdgesOf(DefaultLadder()), SetsOfEdges().back()}) {
    HistogramCounter counter(edges);
    for (const size_t kind : {1u, 2u, 3u}) {
      for (size_t length = 0; length <= 70; ++length) {
        const std::span<const float> values =
            std::span(kinds[kind]).subspan(length * 7, length > 65 ? length * 9 : length);
        counter.Add(values);
        ASSERT_EQ(counter.Take(), ReferenceOf(values, edges)) << length;
        counter.Add(values.first(length / 2));
        counter.Add(values.subspan(length / 2));
        ASSERT_EQ(counter.Take(), ReferenceOf(values, edges)) << length;
      }
    }
  }
}

// More values of one bin than the kernels' own sums hold, with the largest significands.
TEST_P(HistogramOnTarget, CountsManyValuesOfOneBin) {
  constexpr size_t kCount = 400000;
  constexpr uint128_t kSquare = uint128_t{0xFFFFFF} * 0xFFFFFF;
  for (const HistogramEdges& edges : SetsOfEdges()) {
    HistogramCounter counter(edges);
    for (const uint32_t bits : {0xBFFFFFFFu, 0x3D7FFFFFu}) {
      const float value = std::bit_cast<float>(bits);
      counter.Add(std::vector<float>(kCount, value));
      const Histogram histogram = counter.Take();
      const Sign sign = value < 0 ? Sign::kNegative : Sign::kPositive;
      ASSERT_EQ(histogram.Of(sign).bins.size(), 1u);
      const HistogramBin& bin = histogram.Of(sign).bins.front();
      EXPECT_EQ(bin.count, kCount);
      EXPECT_TRUE(bin.squares == kSquare * kCount);
      EXPECT_EQ(histogram.sum, double{value} * kCount);
    }
  }
}

TEST(Histogram, KnowsTheSumAndItsSigns) {
  const HistogramEdges edges({});
  const Histogram histogram =
      HistogramOf(std::vector<float>{1.5f, -2.0f, 0.25f, 1e30f, -1e30f}, edges);
  EXPECT_EQ(histogram.sum, -0.25);
  EXPECT_EQ(histogram.Of(Sign::kNegative).largest, std::bit_cast<uint32_t>(1e30f));
  EXPECT_EQ(histogram.Of(Sign::kNegative).bins.size(), 2u);
}

}  // namespace
}  // namespace dlsim
