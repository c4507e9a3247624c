// SPDX-License-Identifier: Apache-2.0
// Counting on an emulated device that takes long: very many values, and very many bins.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "emulation.h"
#include "tests/gpu/counted_waves.h"

namespace dlsim::gpu {
namespace {

TEST(HistogramGpuLong, CountsOneValueAMillionTimes) {
  emulation::Reset();
  ASSERT_NO_FATAL_FAILURE(ExpectCountedAsOnCpu(
      std::vector<float>(1000000, std::bit_cast<float>(0xBF5DCEB6u)), LadderEdges()));
}

// Enough bins that the tables of the tensors do not fit at once.
TEST(HistogramGpuTables, CountsMoreTensorsThanThereAreTables) {
  emulation::Reset();
  std::vector<uint32_t> edges;
  for (uint32_t i = 0; i < 100000; ++i) edges.push_back((90u << 23) + i * 3001);
  ExpectTensorsCounted(HistogramEdges(edges), 24, 34);
}

}  // namespace
}  // namespace dlsim::gpu
