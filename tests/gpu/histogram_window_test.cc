// SPDX-License-Identifier: Apache-2.0
// What Counter counts where the cells of its shared memory do not suffice.
#include <algorithm>
#include <bit>
#include <random>
#include <ranges>
#include <vector>

#include "device_pieces.h"
#include "dlsim/gpu/histogram.h"
#include "emulated_test.h"
#include "gpu/count/window_plan.h"
#include "histogram_sums.h"

namespace dlsim::gpu {
namespace {

using HistogramWindow = EmulatedTest;

constexpr uint32_t kManyEdges = 40, kFirstEdge = 0x3FC00000, kEdgeDistance = 1024;

// Edges of which so many lie close together that not all ranks between them have cells.
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
  const auto memory = Upload(std::span<const float>(values));
  DeviceTensor tensor;
  tensor.values = memory.data();
  tensor.elements = values.size();
  const TensorList list({&tensor, 1});
  Counter counter(edges, list);
  counter.Count(nullptr);
  const HistogramSums counted = counter.Take(nullptr)[0];
  HistogramCounter reference(edges);
  AddReference(reference, values);
  const HistogramSums expected = TakeSums(reference);
  EXPECT_EQ(counted.elements, expected.elements);
  ASSERT_EQ(counted.signs[0].bins.size(), expected.signs[0].bins.size());
  for (size_t i = 0; i < expected.signs[0].bins.size(); ++i) {
    const HistogramSums::Bin &got = counted.signs[0].bins[i], &right = expected.signs[0].bins[i];
    EXPECT_EQ(got.bin, right.bin);
    EXPECT_EQ(got.count, right.count) << "bin " << right.bin;
    EXPECT_EQ(got.significands, right.significands) << "bin " << right.bin;
    EXPECT_TRUE(got.squares == right.squares) << "bin " << right.bin;
  }
}

}  // namespace
}  // namespace dlsim::gpu
