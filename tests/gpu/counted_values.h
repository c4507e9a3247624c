// SPDX-License-Identifier: Apache-2.0
// What is counted in tests: edges and values of all kinds; and the CPU's results.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/histogram.h"
#include "dlsim/ladder.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim::gpu {

inline bool operator==(const HistogramSums::Bin& a, const HistogramSums::Bin& b) {
  return a.bin == b.bin && a.count == b.count && a.significands == b.significands &&
         a.squares == b.squares;
}

inline void ExpectEqual(const HistogramSums& actual, const HistogramSums& expected) {
  ASSERT_EQ(actual.elements, expected.elements);
  ASSERT_EQ(actual.zeros, expected.zeros);
  ASSERT_EQ(actual.nan, expected.nan);
  ASSERT_EQ(actual.inf, expected.inf);
  for (size_t sign = 0; sign < 2; ++sign) {
    ASSERT_EQ(actual.signs[sign].largest, expected.signs[sign].largest);
    ASSERT_EQ(actual.signs[sign].bins.size(), expected.signs[sign].bins.size());
    for (size_t i = 0; i < expected.signs[sign].bins.size(); ++i) {
      ASSERT_TRUE(actual.signs[sign].bins[i] == expected.signs[sign].bins[i])
          << "bin " << expected.signs[sign].bins[i].bin;
    }
  }
}

inline HistogramSums CountOnCpu(std::span<const float> values, const HistogramEdges& edges) {
  HistogramCounter counter(edges);
  counter.Add(values);
  return TakeSums(counter);
}

inline HistogramSums CountByDefinition(std::span<const float> values, const HistogramEdges& edges) {
  HistogramCounter counter(edges);
  AddReference(counter, values);
  return TakeSums(counter);
}

inline const HistogramEdges& LadderEdges() {
  static const HistogramEdges edges = EdgesOf(DefaultLadder());
  return edges;
}

// Edges that repeat from binade to binade, few, many, and none beyond the powers of two.
inline std::vector<HistogramEdges> SetsOfEdges() {
  std::mt19937 random(3);
  std::vector<HistogramEdges> sets = {LadderEdges(), HistogramEdges({})};
  for (const size_t count : {1u, 30u, 1000u}) {
    std::vector<uint32_t> edges;
    while (edges.size() < count) {
      edges.push_back(static_cast<uint32_t>((127u << 23) - random() % (20u << 23)));
    }
    sets.push_back(HistogramEdges(edges));
  }
  std::vector<uint32_t> ends;
  for (uint32_t binade = 90; binade < 140; ++binade) {
    ends.push_back(binade << 23 | 1);
    ends.push_back(binade << 23 | 0x400000);
    ends.push_back((binade + 1) << 23 | codec::kMantissaMask);
  }
  sets.push_back(HistogramEdges(ends));
  return sets;
}

// The values that profiles are about, and those that kernels tell apart.
inline std::vector<std::vector<float>> KindsOfValues(size_t count) {
  std::mt19937 random(20);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> log2_spread(-36.0f, 3.0f);
  std::vector<std::vector<float>> kinds(10);
  const auto bits_of = [](uint32_t bits) { return std::bit_cast<float>(bits); };
  for (size_t i = 0; i < count; ++i) {
    const float x = normal(random);
    const uint32_t bits = static_cast<uint32_t>(random());
    kinds[0].push_back(x);
    kinds[1].push_back(x * std::exp2(log2_spread(random)));
    kinds[2].push_back(bits % 7 == 0 ? x : -0.0f);
    kinds[3].push_back(bits % 500 == 0   ? std::numeric_limits<float>::quiet_NaN()
                       : bits % 700 == 0 ? -std::numeric_limits<float>::infinity()
                                         : x);
    kinds[4].push_back(bits_of(bits & 0x80FFFFFF));  // half of them subnormal
    kinds[5].push_back(bits_of((bits & 0x87800000) | 0x35E5C6 | bits % 4));
    kinds[6].push_back(std::ldexp(x, 90));
    kinds[7].push_back(bits_of(bits));
    kinds[8].push_back(bits_of(2 * i < count ? 0x7F7FFFFFu : 0xFF7FFFFFu));
    kinds[9].push_back(-std::abs(x) * 1e-30f);
  }
  return kinds;
}

}  // namespace dlsim::gpu
