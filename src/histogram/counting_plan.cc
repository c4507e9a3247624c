// SPDX-License-Identifier: Apache-2.0
#include "src/histogram/counting_plan.h"

#include <algorithm>
#include <utility>

#include "dlsim/histogram.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim {
namespace {

constexpr uint32_t kMantissas = 1u << 23;
constexpr uint32_t kExponents = 256;
constexpr size_t kMostGaps = 8;
constexpr size_t kMostPhases = 64;
// Values in zones cost several times as much as others.
constexpr uint32_t kFewMantissas = kMantissas / 20, kMostMantissas = kMantissas / 8;

struct Gap {
  uint32_t begin, end;
  uint32_t width() const { return end - begin; }
};

// Returns the mantissas of the edges that are normal numbers, but for 0, or none if there are too
// many.
std::optional<std::vector<uint32_t>> PhasesOf(std::span<const uint32_t> edges) {
  std::vector<uint32_t> phases;
  for (const uint32_t edge : edges) {
    const uint32_t phase = edge & codec::kMantissaMask;
    if (edge < kMantissas || phase == 0) continue;
    const auto at = std::lower_bound(phases.begin(), phases.end(), phase);
    if (at != phases.end() && *at == phase) continue;
    if (phases.size() == kMostPhases) return std::nullopt;
    phases.insert(at, phase);
  }
  return phases;
}

// Returns the widest gaps between phases in ascending order, as many as leave few mantissas over.
std::optional<std::vector<Gap>> WidestGaps(std::span<const uint32_t> phases) {
  std::vector<Gap> gaps;
  uint32_t begin = 0;
  for (const uint32_t phase : phases) gaps.push_back({std::exchange(begin, phase), phase});
  gaps.push_back({begin, kMantissas});
  std::sort(gaps.begin(), gaps.end(),
            [](const Gap& a, const Gap& b) { return a.width() > b.width(); });
  uint32_t left = kMantissas;
  size_t count = 0;
  while (count < std::min(kMostGaps, gaps.size()) && left > kFewMantissas) {
    left -= gaps[count++].width();
  }
  if (left > kMostMantissas) return std::nullopt;
  gaps.resize(count);
  std::sort(gaps.begin(), gaps.end(), [](const Gap& a, const Gap& b) { return a.begin < b.begin; });
  return gaps;
}

std::vector<uint32_t> RankBins(std::span<const uint32_t> edges, const PeriodicPlan& plan) {
  std::vector<uint32_t> bins(kExponents * plan.ranks());
  uint32_t bin = 0;
  for (uint32_t exponent = 1; exponent < kExponents - 1; ++exponent) {
    for (size_t rank = 0; rank < plan.ranks(); ++rank) {
      const uint32_t magnitude = exponent << 23 | (rank == 0 ? 0 : plan.phases[rank - 1]);
      while (edges[bin + 1] <= magnitude) ++bin;
      bins[exponent * plan.ranks() + rank] = bin;
    }
  }
  return bins;
}

std::optional<PeriodicPlan> MakePeriodicPlan(std::span<const uint32_t> edges) {
  std::optional<std::vector<uint32_t>> phases = PhasesOf(edges);
  if (!phases) return std::nullopt;
  const std::optional<std::vector<Gap>> gaps = WidestGaps(*phases);
  if (!gaps) return std::nullopt;
  PeriodicPlan plan;
  plan.first_slot = gaps->front().begin == 0 ? 0 : 1;
  plan.slots = static_cast<uint32_t>(2 * (gaps->size() + plan.first_slot));
  plan.slot_ranks.resize(plan.slots);
  size_t slot = 2 * plan.first_slot;
  for (const Gap& gap : *gaps) {
    const auto rank = std::upper_bound(phases->begin(), phases->end(), gap.begin);
    plan.slot_ranks[slot] = static_cast<uint32_t>(rank - phases->begin());
    slot += 2;
    if (gap.begin > 0) plan.boundaries.push_back(gap.begin);
    if (gap.end < kMantissas) plan.boundaries.push_back(gap.end);
  }
  while (plan.boundaries.size() < 2 || plan.boundaries.size() % 2 == 1) {
    plan.boundaries.push_back(kMantissas);
  }
  plan.phases = std::move(*phases);
  plan.rank_bins = RankBins(edges, plan);
  return plan;
}

GeneralPlan MakeGeneralPlan(std::span<const uint32_t> edges) {
  constexpr uint32_t kCellsPerSign = GeneralPlan::kCells / 2;
  constexpr uint32_t kSubnormalCells = kMantissas >> GeneralPlan::kShift;
  const uint32_t bin_count = static_cast<uint32_t>(edges.size() - 1);
  GeneralPlan plan;
  plan.cells.resize(GeneralPlan::kCells);
  uint32_t bin = 0;
  for (uint32_t cell = kSubnormalCells; cell < kCellsPerSign - kSubnormalCells; ++cell) {
    const uint32_t begin = cell << GeneralPlan::kShift, end = (cell + 1) << GeneralPlan::kShift;
    while (edges[bin + 1] <= begin) ++bin;
    const bool has_edge = edges[bin + 1] < end;
    const bool is_crowded = has_edge && edges[bin + 2] < end;
    for (const uint32_t sign : {0u, 1u}) {
      const uint64_t record =
          is_crowded ? GeneralPlan::kCrowded : GeneralPlan::kFirstRecord + sign * bin_count + bin;
      const uint32_t edge = edges[bin + 1] | sign << 31;
      uint64_t& entry = plan.cells[cell + sign * kCellsPerSign];
      entry = record << 32;
      if (is_crowded) {
        entry += bin;
      } else if (has_edge) {
        entry += (uint64_t{1} << 32) - edge;  // carries from the edge on
      }
    }
  }
  return plan;
}

}  // namespace

CountingPlan::CountingPlan(std::vector<uint32_t> edges)
    : edges_(std::move(edges)), periodic_(MakePeriodicPlan(edges_)) {
  if (!periodic_) general_ = MakeGeneralPlan(edges_);
}

size_t CountingPlan::BinOf(uint32_t magnitude) const {
  const auto above = std::upper_bound(edges_.begin(), edges_.end(), magnitude);
  return static_cast<size_t>(above - edges_.begin()) - 1;
}

std::unique_ptr<CountingTables> CountingPlan::TakeTables() const {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<CountingTables> tables = std::move(free_.back());
      free_.pop_back();
      return tables;
    }
  }
  const size_t records =
      periodic_ ? 2 * kExponents * periodic_->slots : GeneralPlan::kFirstRecord + 2 * bin_count();
  return std::make_unique<CountingTables>(records, bin_count());
}

void CountingPlan::ReturnTables(std::unique_ptr<CountingTables> tables) const {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(tables));
}

void CountValue(const CountingPlan& plan, uint32_t bits, CountingTables& tables) {
  const uint32_t magnitude = bits & ~codec::kSignBit;
  if (magnitude == 0) {
    ++tables.zeros;
  } else if (magnitude >= codec::kInfinityBits) {
    ++(magnitude == codec::kInfinityBits ? tables.inf : tables.nan);
  } else {
    const size_t sign = bits >> 31;
    tables.largest[sign] = std::max(tables.largest[sign], magnitude);
    tables.smallest = std::min(tables.smallest, magnitude);
    AddSignificand(Significand(magnitude), tables.wide[sign][plan.BinOf(magnitude)]);
  }
}

HistogramSums TakeWideSums(const CountingPlan& plan, CountingTables& tables) {
  HistogramSums taken = {tables.elements, tables.zeros, tables.nan, tables.inf, {}};
  for (size_t sign = 0; sign < 2; ++sign) {
    taken.signs[sign].largest = tables.largest[sign];
    if (tables.largest[sign] == 0) continue;
    const size_t last = plan.BinOf(tables.largest[sign]);
    for (size_t bin = plan.BinOf(tables.smallest); bin <= last; ++bin) {
      WideSums& sums = tables.wide[sign][bin];
      if (sums.count == 0) continue;
      taken.signs[sign].bins.push_back(
          {static_cast<uint32_t>(bin), sums.count, sums.significands, sums.squares});
      sums = {};
    }
  }
  tables.elements = tables.zeros = tables.nan = tables.inf = 0;
  tables.largest = {};
  tables.smallest = codec::kInfinityBits;
  return taken;
}

}  // namespace dlsim
