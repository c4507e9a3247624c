// SPDX-License-Identifier: Apache-2.0
#include "dlsim/thresholds.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>

#include "check.h"
#include "chunk_range.h"
#include "parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresholds.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "binades-inl.h"
#include "edges-inl.h"

#if HWY_ONCE
namespace dlsim {
namespace {

// Edges whose sums the stack holds.
constexpr size_t kEdgesAtOnce = 64;
static_assert(kRareEdges <= kEdgesAtOnce);

HWY_EXPORT(RangeOfRows);
HWY_EXPORT(CountBelowInRows);
HWY_EXPORT(CountBinadesInRows);
HWY_EXPORT(CountNearBinades);
HWY_EXPORT(SumBelowInRows);
HWY_EXPORT(SumBelowRareEdges);

// Sorts and removes duplicates.
std::vector<uint32_t> Distinct(std::vector<uint32_t> edges) {
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

std::vector<uint32_t> Concatenate(std::vector<uint32_t> a, const std::vector<uint32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

size_t IndexOf(uint32_t edge, const std::vector<uint32_t>& edges) {
  const auto found = std::lower_bound(edges.begin(), edges.end(), edge);
  DLSIM_CHECK(found != edges.end() && *found == edge);
  return static_cast<size_t>(found - edges.begin());
}

// The positions of the sorted edges that lie inside the range of a chunk. What comes before has
// nothing below, what comes after has everything below.
struct Inside {
  size_t begin, end;
};

Inside EdgesInside(std::span<const uint32_t> edges, const ChunkRange& range) {
  const auto begin = std::upper_bound(edges.begin(), edges.end(), range.smallest);
  const auto end = std::upper_bound(begin, edges.end(), range.largest);
  return {static_cast<size_t>(begin - edges.begin()), static_cast<size_t>(end - edges.begin())};
}

// Groups the edges that finite values can reach.
std::vector<EdgeSet::PhaseGroup> GroupByPhase(std::span<const uint32_t> edges) {
  std::map<uint32_t, EdgeSet::PhaseGroup> groups;
  for (size_t e = 0; e < edges.size() && edges[e] < codec::kInfinityBits; ++e) {
    const uint32_t phase = edges[e] & codec::kMantissaMask;
    EdgeSet::PhaseGroup& group = groups[phase];
    group.phase = phase;
    group.positions.push_back(e);
    group.binades.push_back(static_cast<int8_t>(static_cast<int>(edges[e] >> 23) - 127));
  }
  std::vector<EdgeSet::PhaseGroup> result;
  for (auto& [phase, group] : groups) result.push_back(std::move(group));
  return result;
}

uint32_t EdgeAt(const EdgeSet::PhaseGroup& group, size_t e) {
  return group.phase + (static_cast<uint32_t>(group.binades[e] + 127) << 23);
}

// Counts the magnitudes, zeros included, below the edges of a group that are inside.
void CountPhaseGroup(std::span<const float> rows, const EdgeSet::PhaseGroup& group,
                     const Inside& inside, std::span<uint64_t> below) {
  const auto at = [&](size_t position) {
    const auto& positions = group.positions;
    return static_cast<size_t>(std::lower_bound(positions.begin(), positions.end(), position) -
                               positions.begin());
  };
  const size_t begin = at(inside.begin), end = at(inside.end);
  if (begin == end) return;
  const size_t count = end - begin;
  std::array<uint64_t, 256> counts;
  std::fill_n(counts.begin(), count, uint64_t{0});
  if (count == 1) {
    const uint32_t edge = EdgeAt(group, begin);
    HWY_DYNAMIC_DISPATCH(CountBelowInRows)(rows.data(), rows.size(), &edge, 1, counts.data());
  } else {
    HWY_DYNAMIC_DISPATCH(CountBinadesInRows)
    (rows.data(), rows.size(), group.phase, group.binades.data() + begin, count, counts.data());
  }
  for (size_t e = begin; e < end; ++e) below[group.positions[e]] = counts[e - begin];
}

bool IsNearBinade(uint32_t edge) {
  return ((edge + kNearBelow) & codec::kMantissaMask) <= kNearBelow + kNearAbove;
}

// Does so for all edges inside that are near powers of two. Returns whether this was worth while.
bool CountNearBinades(std::span<const float> rows, std::span<const uint32_t> edges,
                      const ChunkRange& range, const Inside& inside, std::span<uint64_t> below) {
  std::array<uint32_t, kEdgesAtOnce> near;
  std::array<size_t, kEdgesAtOnce> positions;
  std::array<uint64_t, kEdgesAtOnce> counts;
  size_t count = 0;
  for (size_t e = inside.begin; e < inside.end; ++e) {
    if (!IsNearBinade(edges[e])) continue;
    if (count == kEdgesAtOnce) return false;
    near[count] = edges[e];
    positions[count++] = e;
  }
  const bool narrow = (range.largest >> 23) - (range.smallest >> 23) < 127;
  if (count < kFewestNearEdges || rows.size() < kFewestNearValues || !narrow) return false;
  if (!HWY_DYNAMIC_DISPATCH(CountNearBinades)(rows.data(), rows.size(), range, near.data(), count,
                                              counts.data())) {
    return false;
  }
  for (size_t e = 0; e < count; ++e) below[positions[e]] = counts[e];
  return true;
}

}  // namespace

void EdgeMeasurer::CountBelow(std::span<const float> rows, const ChunkRange& range) {
  const std::span<const uint32_t> edges = edges_.counted();
  const uint64_t nonfinite = range.nan + range.inf;
  const uint64_t nonzero = rows.size() - range.zeros - nonfinite;
  const Inside inside = EdgesInside(edges, range);
  const auto chunk_below = std::span(chunk_below_);
  std::fill_n(chunk_below_.begin(), inside.begin, uint64_t{0});
  std::fill(chunk_below_.begin() + static_cast<std::ptrdiff_t>(inside.end), chunk_below_.end(),
            nonzero);
  const auto between = chunk_below.subspan(inside.begin, inside.end - inside.begin);
  std::fill(between.begin(), between.end(), uint64_t{0});
  if (nonfinite > 0) {
    HWY_DYNAMIC_DISPATCH(CountBelowInRows)
    (rows.data(), rows.size(), edges.data() + inside.begin, between.size(), between.data());
  } else if (!between.empty()) {
    const bool near_done = CountNearBinades(rows, edges, range, inside, chunk_below);
    for (const EdgeSet::PhaseGroup& group : edges_.phase_groups()) {
      if (near_done && IsNearBinade(group.phase)) continue;
      CountPhaseGroup(rows, group, inside, chunk_below);
    }
  }
  for (uint64_t& below : between) below -= range.zeros;
  for (size_t e = 0; e < edges.size(); ++e) stats_.below[e] += chunk_below_[e];
}

void EdgeMeasurer::SumBelow(std::span<const float> rows, const ChunkRange& range) {
  const std::span<const uint32_t> edges = edges_.summed();
  const Inside inside = EdgesInside(edges, range);
  size_t rare = 0;
  const auto is_rare = [&](size_t e) {
    return chunk_below_[edges_.summed_positions()[e]] <= kRareValues;
  };
  while (rare < kRareEdges && inside.begin + rare < inside.end && is_rare(inside.begin + rare)) {
    ++rare;
  }
  std::array<double, kEdgesAtOnce> sums;
  size_t first = inside.begin;
  if (rare > 0) {
    HWY_DYNAMIC_DISPATCH(SumBelowRareEdges)
    (rows.data(), rows.size(), edges.data() + first, rare, sums.data());
    for (size_t e = 0; e < rare; ++e) stats_.squares_below[first + e] += sums[e];
    first += rare;
  }
  for (; first < inside.end; first += kEdgesAtOnce) {
    const size_t count = std::min(kEdgesAtOnce, inside.end - first);
    HWY_DYNAMIC_DISPATCH(SumBelowInRows)
    (rows.data(), rows.size(), edges.data() + first, count, sums.data());
    for (size_t e = 0; e < count; ++e) stats_.squares_below[first + e] += sums[e];
  }
  for (size_t e = inside.end; e < edges.size(); ++e) {
    stats_.squares_below[e] += range.sum_of_squares;
  }
}

// Adds a chunk made of whole rows; `padding` of its zeros do not count.
void EdgeMeasurer::AddRows(std::span<const float> rows, size_t padding) {
  const ChunkRange range = HWY_DYNAMIC_DISPATCH(RangeOfRows)(rows.data(), rows.size());
  stats_.input.Merge({rows.size() - padding, range.zeros - padding, range.nan, range.inf,
                      std::bit_cast<float>(range.largest), range.sum_of_squares});
  if (range.largest == 0) return;
  CountBelow(rows, range);
  SumBelow(rows, range);
}

EdgeSet::EdgeSet(std::vector<uint32_t> counted, std::vector<uint32_t> summed)
    : counted_(Distinct(Concatenate(std::move(counted), summed))),
      summed_(Distinct(std::move(summed))),
      phase_groups_(GroupByPhase(counted_)) {
  DLSIM_CHECK(counted_.empty() || counted_.back() <= codec::kInfinityBits);
  for (const uint32_t edge : summed_) summed_positions_.push_back(CountedIndex(edge));
}

size_t EdgeSet::CountedIndex(uint32_t edge) const { return IndexOf(edge, counted_); }
size_t EdgeSet::SummedIndex(uint32_t edge) const { return IndexOf(edge, summed_); }

void EdgeStats::Merge(const EdgeStats& later) {
  DLSIM_CHECK(below.size() == later.below.size());
  DLSIM_CHECK(squares_below.size() == later.squares_below.size());
  input.Merge(later.input);
  for (size_t e = 0; e < below.size(); ++e) below[e] += later.below[e];
  for (size_t e = 0; e < squares_below.size(); ++e) squares_below[e] += later.squares_below[e];
}

EdgeMeasurer::EdgeMeasurer(const EdgeSet& edges)
    : edges_(edges), chunk_below_(edges.counted().size()) {
  stats_.below.resize(edges.counted().size());
  stats_.squares_below.resize(edges.summed().size());
}

void EdgeMeasurer::AddChunk(std::span<const float> values) {
  DLSIM_CHECK(values.size() <= kChunkElements);
  if (values.size() % kSumLanes == 0) return AddRows(values, 0);
  // Zeros fill up the last row: they change no sum.
  std::array<float, kChunkElements> rows;
  const size_t padding = kSumLanes - values.size() % kSumLanes;
  std::copy(values.begin(), values.end(), rows.begin());
  std::fill_n(rows.begin() + static_cast<std::ptrdiff_t>(values.size()), padding, 0.0f);
  AddRows(std::span<const float>(rows).first(values.size() + padding), padding);
}

EdgeStats MeasureEdges(std::span<const float> values, const EdgeSet& edges) {
  EdgeStats total = EdgeMeasurer(edges).stats();
  std::vector<EdgeStats> blocks((values.size() + kBlockElements - 1) / kBlockElements);
  ParallelForBlocks(values.size(), [&](size_t begin, size_t count) {
    EdgeMeasurer measurer(edges);
    for (size_t at = begin; at < begin + count; at += kChunkElements) {
      measurer.AddChunk(values.subspan(at, std::min(kChunkElements, begin + count - at)));
    }
    blocks[begin / kBlockElements] = measurer.stats();
  });
  for (const EdgeStats& block : blocks) total.Merge(block);
  return total;
}

}  // namespace dlsim
#endif  // HWY_ONCE
