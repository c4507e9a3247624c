// SPDX-License-Identifier: Apache-2.0
// Rings, trees and float32 sums of ranks: orders, rounding, divisions (docs/accumulation.md).
#include "sim/studies/rank_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "dlsim/codec.h"

namespace dlsim::sim {
namespace {

Reduction In(const std::optional<Format>& wire, Algorithm algorithm, Division division) {
  Reduction reduction;
  reduction.wire = wire;
  reduction.algorithm = algorithm;
  reduction.division = division;
  return reduction;
}

RankValues OneElement(const std::vector<float>& values) { return {values.size(), 1, values}; }

// The mean over ranks 0, 1, ... of one element at a place of its tensor.
float MeanOf(const std::vector<float>& values, const Reduction& reduction, double place = 0) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const std::vector<double> places = {place};
  return Reduce(Send(OneElement(values), reduction), order, places, reduction).front() /
         reduction.scale;
}

float Round(const Format& format, float value) {
  const CodecSpec spec = MakeCodecSpec({format});
  const auto code = Encode(spec, Rounding::kNearestEven, std::bit_cast<uint32_t>(value)).code;
  return std::bit_cast<float>(Decode(spec, code));
}

RankValues RandomRanks(size_t ranks, size_t elements, float mean, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean);
  RankValues values = {ranks, elements, std::vector<float>(ranks * elements)};
  for (float& value : values.values) value = Round(kBf16, normal(random));
  return values;
}

TEST(RankSum, ARingBeginsAfterTheRankOfItsChunkAndRoundsAtEveryHop) {
  const Reduction ring = In(kBf16, Algorithm::kRing, Division::kAfter);
  // 256 + 1 is 256 in bf16; 1 + 1 + 256 + 1 is 258 + 1, and a tie to even is 260.
  EXPECT_EQ(MeanOf({256, 1, 1, 1}, ring, 0.75), 64);  // 256 1 1 1
  EXPECT_EQ(MeanOf({256, 1, 1, 1}, ring, 0), 65);     // 1 1 1 256: 259 is 260
  EXPECT_EQ(MeanOf({256, 1, 1, 1}, ring, 0.25), 65);  // 1 1 256 1: 258 + 1 is 260
  EXPECT_EQ(MeanOf({256, 1, 1, 1}, ring, 0.5), 64);   // 1 256 1 1: 256 all along
}

TEST(RankSum, OverflowDependsOnTheDivision) {
  const std::vector<float> values(4, 30000.0f);
  const auto mean = [&](Algorithm algorithm, Division division) {
    return MeanOf(values, In(kFp16, algorithm, division));
  };
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree, Algorithm::kAllToAll}) {
    EXPECT_EQ(mean(algorithm, Division::kBefore), 30000);
    EXPECT_EQ(mean(algorithm, Division::kSqrt), 30000);
    EXPECT_EQ(mean(algorithm, Division::kAfter), HUGE_VALF);
  }
  // Before the sum fp16 loses what is below its smallest value.
  EXPECT_EQ(MeanOf({0x1p-24f, 0x1p-24f}, In(kFp16, Algorithm::kRing, Division::kBefore)), 0);
  EXPECT_EQ(MeanOf({0x1p-24f, 0x1p-24f}, In(kFp16, Algorithm::kRing, Division::kAfter)), 0x1p-24f);
}

TEST(RankSum, TheSquareRootIsFsdpsPowerOfTwo) {
  const Reduction sqrt = In(kBf16, Algorithm::kRing, Division::kSqrt);
  for (const auto& [ranks, before] :
       {std::pair(2, 2), {4, 2}, {6, 4}, {8, 4}, {64, 8}, {512, 32}}) {
    EXPECT_EQ(sqrt.Before(static_cast<size_t>(ranks)), static_cast<float>(before)) << ranks;
    EXPECT_EQ(sqrt.After(static_cast<size_t>(ranks)),
              static_cast<float>(ranks) / static_cast<float>(before));
  }
}

// The same tree from its parents: that of a rank whose lowest bit is b has this bit cleared and the
// next one set, or only cleared where there is no such rank.
float SumOfTree(const std::vector<float>& values, size_t at, bool mirrored) {
  const size_t ranks = values.size();
  const auto rank_at = [&](size_t p) {
    return !mirrored ? p : ranks % 2 == 0 ? ranks - 1 - p : (p + 1) % ranks;
  };
  float sum = values[rank_at(at)];
  for (size_t child = 1; child < ranks; ++child) {
    const size_t bit = child & (~child + 1);
    size_t parent = (child ^ bit) | (bit << 1);
    if (parent >= ranks) parent = child ^ bit;
    if (parent == at) sum = Round(kBf16, sum + SumOfTree(values, child, mirrored));
  }
  return sum;
}

TEST(RankSum, TreesAreNcclsTwo) {
  const Reduction tree = In(kBf16, Algorithm::kTree, Division::kAfter);
  bool differ = false;
  for (size_t ranks = 2; ranks <= 40; ++ranks) {
    const std::vector<float> values = RandomRanks(ranks, 1, 1, static_cast<unsigned>(ranks)).values;
    const float first = SumOfTree(values, 0, false), second = SumOfTree(values, 0, true);
    const float count = static_cast<float>(ranks);
    EXPECT_EQ(MeanOf(values, tree, 0.49), Round(kBf16, first / count)) << ranks;
    EXPECT_EQ(MeanOf(values, tree, 0.5), Round(kBf16, second / count)) << ranks;
    differ |= first != second;
  }
  EXPECT_TRUE(differ);
}

TEST(RankSum, AllToAllRoundsTheFloat32SumOnce) {
  const Reduction all = In(kBf16, Algorithm::kAllToAll, Division::kAfter);
  const RankValues values = RandomRanks(64, 1, 3, 1);
  const float sum = std::accumulate(values.values.begin(), values.values.end(), 0.0f);
  EXPECT_EQ(MeanOf(values.values, all), Round(kBf16, sum) / 64);
}

TEST(RankSum, Level2AddsPartialSumsOf128Terms) {
  Reduction level = In(kBf16, Algorithm::kRing, Division::kAfter);
  std::vector<float> values(256, 0.5f);
  values[0] = values[128] = 256;
  level.level = 2;
  EXPECT_EQ(MeanOf(values, level), 2);  // 256 swamps all of its chunk
  level.level = 1;
  EXPECT_EQ(MeanOf(values, level), (512 + 127) / 256.0f);
}

TEST(RankSum, FewRanksHaveAllOrdersAndManyShuffledOnes) {
  EXPECT_EQ(OrdersOf(2).size(), 2u);
  EXPECT_EQ(OrdersOf(4).size(), 24u);
  const auto orders = OrdersOf(100);
  EXPECT_EQ(orders.size(), 8u);
  for (std::vector<size_t> order : orders) {
    EXPECT_EQ(std::ranges::count(orders, order), 1);
    std::ranges::sort(order);
    for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(order[i], i);
  }
}

}  // namespace
}  // namespace dlsim::sim
