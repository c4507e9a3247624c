// SPDX-License-Identifier: Apache-2.0
// What is counted where the cells of its shared memory do not suffice.
#include <algorithm>
#include <bit>
#include <random>
#include <ranges>
#include <vector>

#include "gpu/count/window_plan.h"
#include "tests/gpu/counted_waves.h"
#include "tests/gpu/emulated_test.h"

namespace dlsim::gpu {
namespace {

using HistogramWindow = EmulatedTest;

constexpr uint32_t kManyEdges = 40, kFirstEdge = 0x3FC00000, kEdgeDistance = 1024;

// Edges that lie so close together that not all ranks between them have cells.
HistogramEdges CrowdedEdges() {
  std::vector<uint32_t> edges;
  for (uint32_t i = 0; i < kManyEdges; ++i) edges.push_back(kFirstEdge + i * kEdgeDistance);
  return HistogramEdges(edges);
}

TEST_F(HistogramWindow, CountsOnceWhatHasNoCellsWhereOthersOverflow) {
  const HistogramEdges edges = CrowdedEdges();
  const auto plan = MakeWindowPlan(edges);
  ASSERT_TRUE(plan.has_value());
  const auto has_none = [&](uint32_t rank) {
    return plan->plan.codes[rank] == WindowPlan::kNoCell;
  };
  ASSERT_GT(std::ranges::count_if(std::views::iota(1u, kManyEdges), has_none), 0);
  // Many of one value of each rank in turn, and in between values of all of them.
  std::mt19937 random(1);
  std::vector<float> values;
  for (uint32_t rank = 0; rank < kManyEdges; ++rank) {
    for (uint32_t i = 0; i < 4096; ++i) {
      const uint32_t other = static_cast<uint32_t>(random() % (kManyEdges * kEdgeDistance));
      const uint32_t place = i % 4 == 0 ? other : rank * kEdgeDistance + 5;
      values.push_back(std::bit_cast<float>(kFirstEdge + place));
    }
  }
  ExpectCountedAsOnCpu(values, edges);
}

}  // namespace
}  // namespace dlsim::gpu
