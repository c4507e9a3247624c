// SPDX-License-Identifier: Apache-2.0
// How the kernels find the bin of a value: prepared once per set of edges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "src/histogram/counting_tables.h"

namespace dlsim {

struct HistogramSums;

// Most sets of edges repeat from binade to binade: their mantissas, here called phases, are few and
// lie close together. Between such groups there are wide gaps, which hold nearly all values. A slot
// is a gap (even) or a zone of phases (odd) of one binade.
struct PeriodicPlan {
  std::vector<uint32_t> phases;      // without 0; ascending
  std::vector<uint32_t> boundaries;  // of slots, ascending; an even number, at least two
  uint32_t first_slot = 0;           // that of mantissa 0
  uint32_t slots = 0;                // per binade; even
  std::vector<uint32_t> slot_ranks;  // of the gaps: the number of phases up to where they begin
  std::vector<uint32_t> rank_bins;   // [exponent * (phases + 1) + rank]

  size_t ranks() const { return phases.size() + 1; }
};

// For any edges: a table over the sign, the exponent and the first bits of the mantissa.
struct GeneralPlan {
  static constexpr int kShift = 17;
  static constexpr size_t kCells = size_t{1} << (32 - kShift);

  // A record for what is no value; one for cells with several edges inside; then those of the bins
  // of both signs.
  static constexpr uint32_t kCrowded = 1;
  static constexpr uint32_t kFirstRecord = 2;

  // (cells[bits >> kShift] + bits) >> 32 is the record of a value. The lower half of a crowded cell
  // is the bin in which it begins.
  std::vector<uint64_t> cells;
};

class CountingPlan {
 public:
  // `edges` are those of HistogramEdges.
  explicit CountingPlan(std::vector<uint32_t> edges);

  const std::optional<PeriodicPlan>& periodic() const { return periodic_; }
  const GeneralPlan& general() const { return general_; }  // if the edges are not periodic
  std::span<const uint32_t> edges() const { return edges_; }
  size_t bin_count() const { return edges_.size() - 1; }

  // The bin of a nonzero finite magnitude.
  size_t BinOf(uint32_t magnitude) const;

  // Tables that are empty. They are kept to be used again: making them takes as long as counting
  // some ten thousand values.
  std::unique_ptr<CountingTables> TakeTables() const;
  void ReturnTables(std::unique_ptr<CountingTables> tables) const;

 private:
  std::vector<uint32_t> edges_;
  std::optional<PeriodicPlan> periodic_;
  GeneralPlan general_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<CountingTables>> free_;
};

// Counts one value of any kind: the definition that the kernels must equal.
void CountValue(const CountingPlan& plan, uint32_t bits, CountingTables& tables);

// Returns what the wide sums of the tables hold and empties them.
HistogramSums TakeWideSums(const CountingPlan& plan, CountingTables& tables);

}  // namespace dlsim
