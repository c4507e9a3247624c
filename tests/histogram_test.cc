// SPDX-License-Identifier: Apache-2.0
#include "dlsim/histogram.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "dlsim/histogram_question.h"
#include "dlsim/ladder.h"
#include "dlsim/measure.h"

namespace dlsim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Values of all binades, subnormal ones, zeros, and some that are not finite.
std::vector<float> AnyValues(size_t count) {
  std::mt19937 random(7);
  std::vector<float> values = {0.0f, -0.0f, kInfinity, -kInfinity, kNan};
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
            ASSERT_EQ(answer.stats.elements, measured.elements);
            ASSERT_EQ(answer.stats.zeros, measured.zeros);
            ASSERT_EQ(answer.stats.nan, measured.nan);
            ASSERT_EQ(answer.stats.inf, measured.inf);
            ASSERT_EQ(answer.stats.underflow, measured.underflow);
            ASSERT_EQ(answer.stats.subnormal, measured.subnormal);
            ASSERT_EQ(answer.stats.overflow, measured.overflow);
            ASSERT_EQ(answer.stats.nonfinite_outputs, measured.nonfinite_outputs);
            ASSERT_EQ(answer.stats.absmax, measured.absmax);
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
    EXPECT_LE(answer.underflow_squares.low, measured.underflow_sum_of_squares * (1 + 1e-12));
    EXPECT_GE(answer.underflow_squares.high, measured.underflow_sum_of_squares * (1 - 1e-12));
  }
  EXPECT_TRUE(inexact);
}

TEST(Histogram, OfPartsMergeToThatOfTheWhole) {
  const HistogramEdges edges({std::bit_cast<uint32_t>(1.5f)});
  const std::vector<float> values = AnyValues(2000);
  HistogramCounter first(edges), second(edges);
  first.Add(std::span(values).subspan(0, 700));
  second.Add(std::span(values).subspan(700));
  HistogramSums sums = second.TakeSums();
  sums.Merge(first.TakeSums());
  EXPECT_EQ(sums.ToHistogram(edges), HistogramOf(values, edges));
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
