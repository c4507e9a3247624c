// SPDX-License-Identifier: Apache-2.0
// What counting in shared memory does to one value, called on the host: places and sums.
#include "gpu/count/window_element.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "dlsim/ladder.h"
#include "gpu/count/window_cells.cuh"

namespace dlsim::gpu {
namespace {

constexpr uint32_t kMantissas = 1u << 23;

const HistogramEdges& LadderEdges() {
  static const HistogramEdges edges = EdgesOf(DefaultLadder());
  return edges;
}
const HostWindowPlan& LadderPlan() {
  static const HostWindowPlan plan = MakeWindowPlan(LadderEdges()).value();
  return plan;
}

SlotPlace PlaceOf(const WindowPlan& plan, uint32_t bits) {
  return SlotPlace::Of(bits, plan.cells[SlotPlace::CellOf(bits)]);
}

TEST(WindowElement, TheLadderHasAPlanThatGivesMostValuesASlot) {
  uint32_t without_slot = 0, without_cell = 0;
  for (uint32_t mantissa = 0; mantissa < kMantissas; ++mantissa) {
    without_slot += !PlaceOf(LadderPlan().plan, mantissa).IsIn(0);
    const uint32_t rank = RankOf(LadderPlan().plan.phases, mantissa);
    without_cell += LadderPlan().plan.codes[rank] == WindowPlan::kNoCell;
  }
  EXPECT_EQ(without_slot, 8u << WindowPlan::kCellShift);
  EXPECT_LT(without_cell, kMantissas / 500);
}

TEST(WindowElement, OnlyEdgesThatRepeatHaveAPlan) {
  EXPECT_TRUE(MakeWindowPlan(HistogramEdges({})));
  std::vector<uint32_t> edges;
  for (uint32_t i = 0; i < 200; ++i) edges.push_back((100u << 23) + i * 1234567);
  EXPECT_FALSE(MakeWindowPlan(HistogramEdges(edges)));
}

// Every mantissa of some binades, of both signs.
TEST(WindowElement, PlacesEveryMantissaInItsBin) {
  for (const HistogramEdges& edges : {LadderEdges(), HistogramEdges({})}) {
    const HostWindowPlan made = MakeWindowPlan(edges).value();
    const WindowPlan& plan = made.plan;
    for (const uint32_t exponent : {1u, 90u, 126u, 127u, 254u}) {
      const uint32_t* bins = made.bins.data() + exponent * WindowPlan::kRanks;
      uint32_t bin = static_cast<uint32_t>(edges.BinOf(exponent << 23));
      for (uint32_t mantissa = 0; mantissa < kMantissas; ++mantissa) {
        const uint32_t bits = (exponent << 23 | mantissa) | (mantissa & 1) << 31;
        if (edges.bits()[bin + 1] <= (bits & ~codec::kSignBit)) ++bin;
        const uint32_t rank = RankOf(plan.phases, mantissa);
        ASSERT_EQ(bins[rank], bin) << std::hex << bits;
        const int32_t distance = static_cast<int32_t>(mantissa - plan.centers[rank]);
        ASSERT_LE(static_cast<uint32_t>(std::abs(distance)), (kMostRankWidth + 1) / 2);
        const SlotPlace place = PlaceOf(plan, bits);
        if (!place.IsIn(0)) continue;
        ASSERT_EQ(plan.ranks_of_codes[place.slot()], rank) << std::hex << bits;
        ASSERT_EQ(place.distance(), distance) << std::hex << bits;
      }
    }
  }
}

TEST(WindowElement, OneValueIsRecoveredFromItsWords) {
  for (int32_t distance = -2950000; distance <= 2950000; ++distance) {
    CellSums sums;
    AddCell(WordsOf(distance), sums);
    ASSERT_EQ(sums.count, 1u);
    ASSERT_EQ(sums.distances, distance);
    ASSERT_EQ(sums.squares, static_cast<uint64_t>(int64_t{distance} * distance));
  }
}

void AddWords(const CellWords& term, CellWords& words) {
  words.squares_low += term.squares_low;
  words.squares_high += term.squares_high;
  words.distances += term.distances;
}

TEST(WindowElement, ACellHolds127Values) {
  std::mt19937 random(4);
  for (const int32_t widest : {1, 1000, 2362517, 2950000}) {
    for (int kind = 0; kind < 4; ++kind) {
      CellWords words;
      uint64_t squares = 0;
      int64_t distances = 0;
      for (uint32_t count = 1; count <= kMostInCell; ++count) {
        const int32_t any =
            static_cast<int32_t>(random() % (2 * static_cast<uint32_t>(widest) + 1)) - widest;
        const int32_t distance = kind == 0 ? widest : kind == 1 ? -widest : any;
        AddWords(WordsOf(distance), words);
        squares += static_cast<uint64_t>(int64_t{distance} * distance);
        distances += distance;
        CellSums sums;
        AddCell(words, sums);
        ASSERT_EQ(sums.count, count);
        ASSERT_EQ(sums.squares, squares);
        ASSERT_EQ(sums.distances, distances);
      }
    }
  }
}

// By which an overflow is seen: it never makes the count larger, nor leaves it right.
TEST(WindowElement, ACellWithMoreValuesHasTooSmallACount) {
  for (const int32_t distance : {0, 1, 100000, 2362517, -2950000}) {
    CellWords words;
    for (uint32_t count = 1; count <= 32768; ++count) {
      AddWords(WordsOf(distance), words);
      if (count <= kMostInCell) continue;
      ASSERT_LT(words.squares_high >> kCellCountShift, count);
    }
  }
}

TEST(WindowElement, SumsAroundACentreAreThoseOfSignificands) {
  std::mt19937 random(6);
  for (const uint32_t center : {0u, 1u, 0x81u + 491105u, 0x35E6D8u + 2362517u, 0x7FFFFFu}) {
    CellSums sums;
    uint64_t significands = 0, squares = 0;
    for (uint32_t i = 0; i < 32768; ++i) {
      const uint32_t mantissa =
          i % 3 == 0 ? kMantissas - 1 : static_cast<uint32_t>(random()) % kMantissas;
      const int64_t distance = int64_t{mantissa} - center;
      ++sums.count;
      sums.distances += distance;
      sums.squares += static_cast<uint64_t>(distance * distance);
      const uint64_t significand = mantissa | kMantissas;
      significands += significand;
      squares += significand * significand;
    }
    EXPECT_EQ(AroundCentre(sums, center).significands, significands);
    EXPECT_EQ(AroundCentre(sums, center).squares, squares);
  }
}

// All 2^32 inputs have the cheap form of the test in the kernel.
TEST(WindowElement, AWindowHasItsBinadesOnly) {
  for (const uint32_t largest : {0u, 1u, 60u, 62u, 127u, 200u, 254u}) {
    const Window window = Window::Below(largest);
    const uint32_t first = window.low >> 23;
    ASSERT_GE(first, 1u);
    EXPECT_TRUE(largest < first || largest < first + Window::kBinades);
    for (uint32_t exponent = 0; exponent < 256; ++exponent) {
      const bool is_inside =
          exponent >= first && exponent < first + Window::kBinades && exponent < 255;
      for (const uint32_t mantissa : {0u, 1u, 0x400000u, 0x7FFFFFu}) {
        for (const uint32_t sign : {0u, 1u}) {
          ASSERT_EQ(window.Has(sign << 31 | exponent << 23 | mantissa), is_inside) << exponent;
        }
      }
    }
  }
}

TEST(WindowElement, TheQueuesOfWarpsLieApart) {
  std::vector<uint32_t> queues = {WindowLayout::kTrash + WindowLayout::kRow};
  for (uint32_t warp = 0; warp < WindowLayout::kWarps; ++warp) {
    const uint32_t queue = WindowLayout::QueueOf(warp);
    ASSERT_GE(queue, queues.back() + (warp == 0 ? 0 : WindowLayout::kQueue));
    // Not among the cells: those of negative values of the first two words, or behind all.
    const uint32_t in_word = queue % WindowLayout::kWord;
    const bool in_gap =
        in_word > WindowLayout::kTrash &&
        in_word + WindowLayout::kQueue <= WindowLayout::kTrash + WindowLayout::kSlot &&
        queue < 2 * WindowLayout::kWord;
    const bool behind = queue >= WindowLayout::kParts + WindowPlan::kCells * WindowLayout::kRow &&
                        queue + WindowLayout::kQueue <= WindowLayout::kPhases;
    ASSERT_TRUE(in_gap || behind) << warp;
    queues.push_back(queue);
  }
}

}  // namespace
}  // namespace dlsim::gpu
