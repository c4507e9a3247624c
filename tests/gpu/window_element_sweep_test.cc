// SPDX-License-Identifier: Apache-2.0
// What the counting kernels do to one value equals the definition for each of the 2^31 magnitudes,
// with the edges of the default ladder.
#include "gpu/count/window_element.cuh"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "dlsim/ladder.h"
#include "gpu/count/count_element.cuh"
#include "src/base/parallel.h"

namespace dlsim::gpu {
namespace {

// How a magnitude is counted.
enum Counted { kWrong, kOther, kInSlot, kInSharedCell, kInNoCell, kKinds };

struct Edges {
  HistogramEdges edges = EdgesOf(DefaultLadder());
  HostWindowPlan made = MakeWindowPlan(edges).value();
  DeviceEdges device = {edges.bits().data(), static_cast<uint32_t>(edges.bin_count())};
};

// The sums of one value as they leave its cell.
bool IsRecovered(int32_t distance, uint32_t center, uint64_t significand) {
  CellSums sums;
  AddCell(WordsOf(distance), sums);
  const SignificandSums recovered = AroundCentre(sums, center);
  return sums.count == 1 && recovered.significands == significand &&
         recovered.squares == significand * significand;
}

// Of a magnitude with an exponent that a window may have.
Counted CountedInWindow(const HostWindowPlan& made, uint32_t magnitude, uint32_t bin) {
  const WindowPlan& plan = made.plan;
  const uint32_t mantissa = magnitude & codec::kMantissaMask;
  const uint32_t rank = RankOf(plan.phases, mantissa);
  const int32_t distance = static_cast<int32_t>(mantissa - plan.centers[rank]);
  const uint32_t bits = magnitude | mantissa << 31;  // of either sign
  const SlotPlace place = SlotPlace::Of(bits, plan.cells[SlotPlace::CellOf(bits)]);
  const uint32_t code = plan.codes[rank];
  if (made.bins[(magnitude >> 23) * WindowPlan::kRanks + rank] != bin) return kWrong;
  if (static_cast<uint32_t>(std::abs(distance)) > (kMostRankWidth + 1) / 2) return kWrong;
  if (!IsRecovered(distance, plan.centers[rank], Significand(magnitude))) return kWrong;
  if (code < WindowPlan::kNoCell && plan.ranks_of_codes[code] != rank) return kWrong;
  if (place.IsIn(0)) {
    return place.slot() == code && code < WindowPlan::kSlots && place.distance() == distance
               ? kInSlot
               : kWrong;
  }
  return code < WindowPlan::kNoCell ? kInSharedCell : kInNoCell;
}

Counted CountedAs(const Edges& edges, uint32_t magnitude) {
  ValueRange range;
  const bool is_finite = magnitude < codec::kInfinityBits;
  const bool has_bin = is_finite && magnitude != 0;
  const uint32_t exponent = magnitude >> 23;
  for (const uint32_t largest : {0u, 127u, 254u}) {
    const Window window = Window::Below(largest);
    const uint32_t first = window.low >> 23;
    const bool is_inside = exponent >= first && exponent < first + Window::kBinades;
    if (window.Has(magnitude) != is_inside) return kWrong;
    if (window.Has(magnitude | codec::kSignBit) != is_inside) return kWrong;
    if (is_inside && (exponent == 0 || !is_finite)) return kWrong;
  }
  if (HasBin(magnitude, range) != has_bin) return kWrong;
  if (range.zeros != (magnitude == 0) || range.inf != (magnitude == codec::kInfinityBits) ||
      range.nan != (magnitude > codec::kInfinityBits)) {
    return kWrong;
  }
  if (!has_bin) return kOther;
  const uint32_t bin = static_cast<uint32_t>(edges.edges.BinOf(magnitude));
  if (BinOf(edges.device, magnitude) != bin) return kWrong;
  if (SignificandOf(magnitude) != Significand(magnitude)) return kWrong;
  return exponent == 0 ? kOther : CountedInWindow(edges.made, magnitude, bin);
}

TEST(WindowElementSweep, EveryMagnitudeIsCountedByDefinition) {
  const Edges edges;
  std::array<std::atomic<uint64_t>, kKinds> counts = {};
  std::atomic<uint32_t> wrong = 0;
  ParallelFor(1 << 11, [&](size_t part) {
    std::array<uint64_t, kKinds> of_part = {};
    for (uint32_t i = 0; i < 1u << 20; ++i) {
      const uint32_t magnitude = static_cast<uint32_t>(part) << 20 | i;
      const Counted counted = CountedAs(edges, magnitude);
      ++of_part[counted];
      if (counted == kWrong) wrong = magnitude;
    }
    for (size_t kind = 0; kind < kKinds; ++kind) counts[kind] += of_part[kind];
  });
  EXPECT_EQ(counts[kWrong], 0u) << "one of them is " << std::hex << wrong;
  EXPECT_EQ(counts[kOther], 2u << 23);  // zero, subnormal, infinite and NaN
  EXPECT_EQ(counts[kInSlot], uint64_t{254} * (120u << WindowPlan::kCellShift));
  EXPECT_LT(counts[kInNoCell], uint64_t{254} * (1u << 23) / 500);
  EXPECT_GT(counts[kInSharedCell], counts[kInNoCell]);
}

}  // namespace
}  // namespace dlsim::gpu
