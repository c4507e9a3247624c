// SPDX-License-Identifier: Apache-2.0
#include "gpu/count/window_plan.h"

#include <algorithm>
#include <numeric>

#include "src/histogram/counting_plan.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim::gpu {
namespace {

constexpr uint32_t kMantissas = 1u << 23;
constexpr uint32_t kCellWidth = 1u << WindowPlan::kCellShift;
// More values without slots than this are not worth it.
constexpr uint32_t kFewestSlotCells = WindowPlan::kCells * 3 / 4;

struct Rank {
  uint32_t begin = 0, end = 0;
  uint32_t whole_cells = 0;
  uint32_t multiples = 0;  // of kCellWidth, the only mantissas of bf16

  uint32_t center() const { return begin + (end - begin) / 2; }
};

uint32_t CellsUpTo(uint32_t mantissa) { return (mantissa + kCellWidth - 1) / kCellWidth; }

// Returns the parts into which phases cut a binade, none wider than kMostRankWidth.
std::vector<Rank> RanksOf(const std::vector<uint32_t>& phases) {
  std::vector<Rank> ranks;
  const auto add = [&](uint32_t begin, uint32_t end) {
    const uint32_t first = CellsUpTo(begin), last = end / kCellWidth;
    ranks.push_back({begin, end, last > first ? last - first : 0, CellsUpTo(end) - first});
  };
  uint32_t begin = 0;
  for (size_t i = 0; i <= phases.size(); ++i) {
    const uint32_t end = i < phases.size() ? phases[i] : kMantissas;
    if (end - begin > kMostRankWidth) {
      const uint32_t middle = begin + (end - begin) / 2;
      add(begin, middle);
      begin = middle;
    }
    add(begin, end);
    begin = end;
  }
  return ranks;
}

// Gives ranks slots and shared cells.
void GiveCells(const std::vector<Rank>& ranks, WindowPlan& plan) {
  std::vector<uint32_t> order(ranks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return ranks[a].whole_cells > ranks[b].whole_cells;
  });
  // Both ways in which mantissas are spread count: all alike, and those of bf16.
  const auto weight = [&](uint32_t i) {
    return ranks[i].end - ranks[i].begin + ranks[i].multiples * kCellWidth;
  };
  if (order.size() > WindowPlan::kSlots) {
    std::stable_sort(order.begin() + WindowPlan::kSlots, order.end(),
                     [&](uint32_t a, uint32_t b) { return weight(a) > weight(b); });
  }
  std::fill(std::begin(plan.codes), std::end(plan.codes), WindowPlan::kNoCell);
  const size_t used = std::min<size_t>(order.size(), WindowPlan::kNoCell);
  for (uint32_t code = 0; code < used; ++code) {
    plan.codes[order[code]] = code;
    plan.ranks_of_codes[code] = order[code];
  }
}

std::vector<uint32_t> BinsOf(const HistogramEdges& edges, const std::vector<Rank>& ranks) {
  std::vector<uint32_t> bins(256 * WindowPlan::kRanks);
  for (uint32_t exponent = 1; exponent < 255; ++exponent) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      bins[exponent * WindowPlan::kRanks + rank] =
          static_cast<uint32_t>(edges.BinOf(exponent << 23 | ranks[rank].begin));
    }
  }
  return bins;
}

}  // namespace

std::optional<HostWindowPlan> MakeWindowPlan(const HistogramEdges& edges) {
  const std::optional<PeriodicPlan>& periodic = PlanOf(edges).periodic();
  if (!periodic) return std::nullopt;
  const std::vector<Rank> ranks = RanksOf(periodic->phases);
  if (ranks.size() > WindowPlan::kRanks) return std::nullopt;
  HostWindowPlan made = {};
  WindowPlan& plan = made.plan;
  std::fill(std::begin(plan.phases), std::end(plan.phases), ~0u);
  std::fill(std::begin(plan.cells), std::end(plan.cells), WindowPlan::kNoSlot);
  GiveCells(ranks, plan);
  uint32_t slot_cells = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) plan.phases[i - 1] = ranks[i].begin;
    plan.centers[i] = ranks[i].center();
    if (plan.codes[i] >= WindowPlan::kSlots) continue;
    slot_cells += ranks[i].whole_cells;
    const uint32_t first = CellsUpTo(ranks[i].begin);
    std::fill_n(plan.cells + first, ranks[i].whole_cells, plan.codes[i] - (plan.centers[i] << 9));
  }
  if (slot_cells < kFewestSlotCells) return std::nullopt;
  made.bins = BinsOf(edges, ranks);
  return made;
}

}  // namespace dlsim::gpu
