// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstddef>

#include "dlsim/histogram.h"
#include "src/histogram/counting_plan.h"
#include "src/histogram/histogram_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/histogram/histogram_counter.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/codec/dispatch.h"
#include "src/histogram/count_values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

// Counts values, or those that wait if there are none.
void CountValues(const float* values, size_t count, const CountingPlan& plan,
                 CountingTables& tables) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < count; ++i) CountValue(plan, std::bit_cast<uint32_t>(values[i]), tables);
#else
  CountNormal(values, count, plan, tables);
#endif
}

// Finds indices of PeriodicPlan::rank_bins; whole vectors are read and written.
void RankValues(const uint32_t* values, size_t count, const PeriodicPlan& plan, uint32_t* indices) {
#if HWY_TARGET == HWY_SCALAR
  (void)values, (void)count, (void)plan, (void)indices;  // nothing is set aside
#else
  FindRanks(values, count, plan, indices);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim {
namespace {

DLSIM_EXPORT(CountValues);
DLSIM_EXPORT(RankValues);

// Values that the ways of a record hold together: neighbors take turns.
constexpr size_t kMostInRecords = kWays * CountRecord::kMostValues;
constexpr size_t kPiece = 4096;
// Values that one call of a kernel may count, with those that waited.
constexpr size_t kMostPerCall = kPiece + 2 * CountingTables::kBlock;
static_assert(kMostPerCall < CountingTables::kMostAside);

// Moves a record to wide sums.
void MoveRecord(CountRecords& records, WideSums& sums) {
  constexpr uint64_t kSignificands = (uint64_t{1} << CountRecord::kCountShift) - 1;
  for (CountRecord& record : records) {
    if (record.packed == 0) continue;
    sums.count += record.packed >> CountRecord::kCountShift;
    sums.significands += record.packed & kSignificands;
    sums.squares += record.squares;
    record = {};
  }
}

// Calls body(sign, exponent) for where there may be normal numbers.
template <class Body>
void ForEachBinade(const CountingTables& tables, const Body& body) {
  for (size_t sign = 0; sign < 2; ++sign) {
    const uint32_t last = tables.largest[sign] >> 23;
    for (uint32_t exponent = std::max(tables.smallest >> 23, 1u); exponent <= last; ++exponent) {
      body(sign, exponent);
    }
  }
}

void EmptyPeriodicRecords(const PeriodicPlan& plan, CountingTables& tables) {
  ForEachBinade(tables, [&](size_t sign, uint32_t exponent) {
    CountRecords* row = &tables.records[(sign << 8 | exponent) * plan.slots];
    const uint32_t* bins = plan.rank_bins.data() + exponent * plan.ranks();
    for (size_t slot = 0; slot < plan.slots; slot += 2) {
      MoveRecord(row[slot], tables.wide[sign][bins[plan.slot_ranks[slot]]]);
      row[slot + 1] = {};  // its values were set aside
    }
  });
}

void EmptyGeneralRecords(const CountingPlan& plan, CountingTables& tables) {
  for (size_t sign = 0; sign < 2; ++sign) {
    if (tables.largest[sign] == 0) continue;
    const size_t last = plan.BinOf(tables.largest[sign]);
    CountRecords* row = &tables.records[GeneralPlan::kFirstRecord + sign * plan.bin_count()];
    for (size_t bin = plan.BinOf(tables.smallest); bin <= last; ++bin) {
      MoveRecord(row[bin], tables.wide[sign][bin]);
    }
  }
}

void EmptyRecords(const CountingPlan& plan, CountingTables& tables) {
  if (plan.periodic()) {
    EmptyPeriodicRecords(*plan.periodic(), tables);
  } else {
    EmptyGeneralRecords(plan, tables);
  }
  tables.in_records = 0;
}

void CountInBin(uint32_t bits, size_t bin, CountingTables& tables) {
  AddSignificand(Significand(bits & ~codec::kSignBit), tables.wide[bits >> 31][bin]);
}

void CountInZones(const PeriodicPlan& plan, CountingTables& tables) {
  std::array<uint32_t, CountingTables::kBlock + CountingTables::kSlack> indices;
  for (size_t begin = 0; begin < tables.aside_count; begin += CountingTables::kBlock) {
    const uint32_t* values = tables.aside.data() + begin;
    const size_t count = std::min(CountingTables::kBlock, tables.aside_count - begin);
    DLSIM_DISPATCH(RankValues)(values, count, plan, indices.data());
    for (size_t i = 0; i < count; ++i) CountInBin(values[i], plan.rank_bins[indices[i]], tables);
  }
}

void CountInCrowdedCells(const CountingPlan& plan, CountingTables& tables) {
  for (size_t i = 0; i < tables.aside_count; ++i) {
    const uint32_t bits = tables.aside[i];
    size_t bin = static_cast<uint32_t>(plan.general().cells[bits >> GeneralPlan::kShift]);
    while (plan.edges()[bin + 1] <= (bits & ~codec::kSignBit)) ++bin;
    CountInBin(bits, bin, tables);
  }
}

void CountAside(const CountingPlan& plan, CountingTables& tables) {
  if (plan.periodic()) {
    CountInZones(*plan.periodic(), tables);
  } else {
    CountInCrowdedCells(plan, tables);
  }
  tables.aside_count = 0;
}

}  // namespace

HistogramCounter::HistogramCounter(const HistogramEdges& edges)
    : edges_(&edges), tables_(PlanOf(edges).TakeTables()) {}

HistogramCounter::~HistogramCounter() {
  if (tables_->elements == 0) PlanOf(*edges_).ReturnTables(std::move(tables_));
}

void HistogramCounter::Add(std::span<const float> values) {
  const CountingPlan& plan = PlanOf(*edges_);
  CountingTables& tables = *tables_;
  tables.elements += values.size();
  for (size_t begin = 0; begin < values.size(); begin += kPiece) {
    const std::span<const float> piece =
        values.subspan(begin, std::min(kPiece, values.size() - begin));
    DLSIM_DISPATCH(CountValues)(piece.data(), piece.size(), plan, tables);
    if (tables.aside_count + kMostPerCall > CountingTables::kMostAside) CountAside(plan, tables);
    if (tables.in_records + kMostPerCall > kMostInRecords) EmptyRecords(plan, tables);
  }
}

Histogram HistogramCounter::Take() { return TakeSums(*this).ToHistogram(*edges_); }

void HistogramInternals::AddReference(HistogramCounter& counter, std::span<const float> values) {
  counter.tables_->elements += values.size();
  for (const float value : values) {
    CountValue(PlanOf(*counter.edges_), std::bit_cast<uint32_t>(value), *counter.tables_);
  }
}

HistogramSums HistogramInternals::TakeSums(HistogramCounter& counter) {
  const CountingPlan& plan = PlanOf(*counter.edges_);
  CountingTables& tables = *counter.tables_;
  if (tables.pending_count > 0) DLSIM_DISPATCH(CountValues)(nullptr, 0, plan, tables);
  CountAside(plan, tables);
  if (tables.in_records > 0) EmptyRecords(plan, tables);
  return TakeWideSums(plan, tables);
}

}  // namespace dlsim
#endif  // HWY_ONCE
