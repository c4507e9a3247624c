// SPDX-License-Identifier: Apache-2.0
#include "dlsim/accumulate.h"

#include <gtest/gtest.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/format.h"

namespace dlsim {
namespace {

Accumulated Sum(const std::vector<float>& values, const AccumulationOptions& options) {
  return Sum(values, std::span(&options, 1)).front();
}

float SumOf(const std::vector<float>& values, const AccumulationOptions& options) {
  return Sum(values, options).values.front();
}

// Everything in one precision.
AccumulationOptions Within(const Conversion& conversion) {
  AccumulationOptions options;
  options.inputs = options.accumulator = options.combiner = FormatPrecision(conversion);
  return options;
}

std::vector<float> RandomValues(uint32_t seed, size_t count) {
  std::mt19937 engine(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(engine()) * 0x1p-32f - 0.25f;
  return values;
}

// 1 + 2^-11 is a tie in fp16, which has 10 mantissa bits: to even is back to 1, for ever.
TEST(Accumulate, AFp16SumOfOneSwampsWhatIsHalfAnUlp) {
  std::vector<float> values(1025, 0x1p-11f);
  values[0] = 1;
  const Accumulated stuck = Sum(values, Within({kFp16}));
  EXPECT_EQ(stuck.values.front(), 1.0f);
  EXPECT_EQ(stuck.counts, (AdditionCounts{1025, 1024, 0}));
  EXPECT_EQ(SumOf(values, Within({kFp16, Rounding::kNearestAway})), 2.0f);
  AccumulationOptions wide;
  EXPECT_EQ(SumOf(values, wide), 1.5f);
  AccumulationOptions chunked = Within({kFp16});
  chunked.chunk_length = 64;  // only the first chunk has the 1
  const Accumulated better = Sum(values, chunked);
  // 63 are lost in the first chunk; later chunks are exact multiples of 2^-10 and add up.
  EXPECT_EQ(better.values.front(), 1.0f + 961 * 0x1p-11f - 0x1p-11f);
  EXPECT_EQ(better.counts.swamped, 64u);
  EXPECT_EQ(better.counts.additions, 1025u + 17u);
}

TEST(Accumulate, AddsInIndexOrder) {
  const AccumulationOptions fp16 = Within({kFp16});
  EXPECT_EQ(SumOf({2048, 1, 1, -2048}, fp16), 0.0f);
  EXPECT_EQ(SumOf({1, 1, 2048, -2048}, fp16), 2.0f);
  AccumulationOptions pairs = fp16;
  pairs.chunk_length = 2;
  EXPECT_EQ(SumOf({2048, 1, 1, -2048}, pairs), 1.0f);  // 2048 + -2047
}

TEST(Accumulate, OneChunkIsNotCombined) {
  AccumulationOptions options = Within({kFp16});
  options.combiner = FormatPrecision({kBf16});
  EXPECT_EQ(SumOf({1, 0x1p-10f}, options), 1 + 0x1p-10f);
  options.chunk_length = 1;
  EXPECT_EQ(SumOf({1, 0x1p-10f}, options), 1.0f);
}

TEST(Accumulate, AnEmptySumIsZero) {
  const Accumulated none = Sum({}, Within({kFp16}));
  EXPECT_EQ(std::bit_cast<uint32_t>(none.values.front()), 0u);
  EXPECT_EQ(none.counts, AdditionCounts{});
  const AccumulationOptions options;
  EXPECT_EQ(SumAxis({}, {2, 0, 3}, std::span(&options, 1))[0].values, std::vector<float>(6, 0.0f));
}

TEST(Accumulate, CountsOverflowsOfSumsAndOfTerms) {
  AccumulationOptions options = Within({kFp16});
  const Accumulated over = Sum({60000, 60000, 1}, options);
  EXPECT_EQ(over.values.front(), HUGE_VALF);
  EXPECT_EQ(over.counts, (AdditionCounts{3, 0, 1}));
  options.accumulator.conversion.overflow = Overflow::kSaturate;
  EXPECT_EQ(SumOf({60000, 60000, -1000}, options), 65504.0f - 1000.0f + 8.0f);
  AccumulationOptions products;
  products.terms = FormatPrecision({kFp16});
  const std::vector<float> a = {300, 1}, b = {300, 1};
  const Accumulated dot = Dot(a, b, std::span(&products, 1)).front();
  EXPECT_EQ(dot.values.front(), HUGE_VALF);
  EXPECT_EQ(dot.counts.overflows, 1u);
}

// The sum 1 + 2^-24 needs 25 bits: rounded to float32 first, it would be lost for ever.
TEST(Accumulate, StochasticRoundingIsUnbiasedBelowFloat32) {
  const Conversion stochastic = {kFp16, Rounding::kStochastic};
  constexpr int kRuns = 2000;
  constexpr size_t kTerms = 1024;
  std::vector<float> values(kTerms + 1, 0x1p-24f);
  values[0] = 1;
  double mean = 0;
  for (int run = 0; run < kRuns; ++run) {
    AccumulationOptions options = Within(stochastic);
    options.random = {42, static_cast<uint32_t>(8 * run)};
    mean += (static_cast<double>(SumOf(values, options)) - 1) / kRuns;
  }
  // Each run goes up by 2^-10 about 2^-4 times; four standard deviations of the mean.
  const double expected = kTerms * 0x1p-24;
  const double deviation = 0x1p-10 * std::sqrt(kTerms * 0x1p-14 / kRuns);
  EXPECT_NEAR(mean, expected, 4 * deviation);
  EXPECT_GT(mean, 0);
}

TEST(Accumulate, EachChunkAndRowHasItsOwnRandomBits) {
  AccumulationOptions options = Within({kFp16, Rounding::kStochastic});
  std::vector<float> values;
  for (int row = 0; row < 64; ++row) values.insert(values.end(), {1.0f, 0x1p-11f});
  const Accumulated rows = SumAxis(values, {64, 2, 1}, std::span(&options, 1)).front();
  const auto up = std::count(rows.values.begin(), rows.values.end(), 1 + 0x1p-10f);
  EXPECT_GT(up, 16);
  EXPECT_LT(up, 48);
}

// For the rest of the program. Without OpenMP there is one thread anyway.
void SetThreads([[maybe_unused]] int threads) {
#ifdef _OPENMP
  omp_set_num_threads(threads);
#endif
}

TEST(Accumulate, ThreadsDoNotChangeResults) {
  const std::vector<float> a = RandomValues(3, 40000), b = RandomValues(4, 40000);
  std::vector<AccumulationOptions> options;
  for (const uint64_t chunk : {uint64_t{100}, kOneChunk}) {
    for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
      options.push_back(Within({kCb16, rounding}));
      options.back().chunk_length = chunk;
      options.push_back({});
      options.back().chunk_length = chunk;
    }
  }
  const auto run = [&](int threads) {
    SetThreads(threads);
    std::vector<Accumulated> all = Sum(a, options);
    for (auto& r : Dot(a, b, options)) all.push_back(r);
    for (auto& r : SumAxis(a, {4, 100, 100}, options)) all.push_back(r);
    for (auto& r : MatMul(a, b, {10, 4000, 10}, options)) all.push_back(r);
    return all;
  };
  const std::vector<Accumulated> one = run(1), many = run(5);
  ASSERT_EQ(one.size(), many.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].counts, many[i].counts);
    EXPECT_EQ(one[i].values, many[i].values);
  }
}

TEST(Accumulate, BrokenPromisesAreRefused) {
  AccumulationOptions options;
  options.chunk_length = 0;
  EXPECT_THROW(SumOf({1}, options), Error);
  options = {};
  options.accumulator = kExactPrecision;
  EXPECT_THROW(SumOf({1}, options), Error);
  EXPECT_THROW(SumOf({1}, Within({ParseFormat("e8m20").format})), Error);
  options = {};
  const std::vector<float> one = {1}, two = {1, 2};
  EXPECT_THROW(Dot(one, two, std::span(&options, 1)), Error);
}

}  // namespace
}  // namespace dlsim
