// SPDX-License-Identifier: Apache-2.0
// The counting kernels on an emulated device against HistogramCounter.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "emulation.h"
#include "tests/gpu/counted_waves.h"

namespace dlsim::gpu {
namespace {

using emulation::ThreadOrder;

class HistogramGpu : public testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override {
    emulation::Reset();
    emulation::SetThreadOrder(GetParam(), 5);
  }
};
INSTANTIATE_TEST_SUITE_P(Orders, HistogramGpu,
                         testing::Values(ThreadOrder::kAscending, ThreadOrder::kDescending,
                                         ThreadOrder::kShuffled));

TEST_P(HistogramGpu, CountsAsTheCpuDoes) {
  for (const HistogramEdges& edges : SetsOfEdges()) {
    ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(KindsOfValues(3000)[7], edges));
  }
}

TEST_P(HistogramGpu, CountsLongArraysAsTheCpuDoes) {
  ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(KindsOfValues(75001)[1], LadderEdges()));
}

TEST(HistogramGpuKinds, AreCountedAsOnTheCpu) {
  emulation::Reset();
  for (const std::vector<float>& values : KindsOfValues(9001)) {
    ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(values, LadderEdges()));
  }
}

TEST(HistogramGpuEdges, HaveNeighborsThatAreCountedAsOnTheCpu) {
  emulation::Reset();
  for (const HistogramEdges& edges : SetsOfEdges()) {
    std::vector<float> values;
    for (const uint32_t edge : edges.bits()) {
      for (const uint32_t bits : {edge - 1, edge, edge + 1}) {
        values.push_back(std::bit_cast<float>(bits));
        values.push_back(-values.back());
      }
    }
    ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(values, edges));
  }
}

// More of one bin than small counters hold: of a slot, with the largest significand, of a power of
// two, of no bin at all.
TEST_P(HistogramGpu, CountsOneValueManyTimes) {
  for (const uint32_t bits : {0xBF5DCEB6u, 0x3D7FFFFFu, 0x3F800000u, 1u, 0u}) {
    ASSERT_NO_FATAL_FAILURE(
        ExpectCountedAsOnCpu(std::vector<float>(70000, std::bit_cast<float>(bits)), LadderEdges()));
  }
}

// Some cells overflow, after others have values that wait from piece to piece.
TEST_P(HistogramGpu, CountsValuesThatAreMuchAlikeAfterOthers) {
  std::vector<float> values = KindsOfValues(70000)[1];
  for (size_t i = 66000; i < values.size(); ++i) values[i] = 0.8f;
  std::mt19937 random(2);
  while (values.size() < 140000) {
    values.push_back(std::ldexp(static_cast<float>(random()), -32));  // from 0 to 1
  }
  ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(values, LadderEdges()));
}

// Binades far apart, one after the other.
TEST(HistogramGpuMagnitudes, MayDifferFromPieceToPiece) {
  emulation::Reset();
  std::vector<float> values;
  for (const int exponent : {0, 100, 20, -100, -140, 60, 0}) {
    const std::vector<float> more = KindsOfValues(66000)[0];
    for (size_t i = 0; i < more.size(); ++i) {
      values.push_back(std::ldexp(more[i], exponent));
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(values, LadderEdges()));
}

}  // namespace
}  // namespace dlsim::gpu
