// SPDX-License-Identifier: Apache-2.0
#include "src/measure/channel_table.h"

#include <algorithm>
#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/measure/channel_table.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "src/codec/dispatch.h"
#include "src/histogram/add_records-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void CountRunOnTarget(const float* values, size_t count, ChannelTable& table) {
  table.AddEach(values, count, 1);
}

void CountColumnsOnTarget(const float* values, size_t rows, size_t stride, ColumnTables& tables) {
  for (size_t c = 0; c < kColumns; ++c) tables[c].AddEach(values + c, rows, stride);
}

#else

// What is known of the values that went through each lane.
class LaneRanges {
 public:
  LaneRanges()
      : smallest_less_one_(SetLanes(~0u)), largest_(hn::Zero(U32Tag())), zeros_(largest_) {}

  HWY_INLINE void Add(V magnitude) {
    smallest_less_one_ = hn::Min(smallest_less_one_, hn::Sub(magnitude, SetLanes(1)));
    largest_ = hn::Max(largest_, magnitude);
    const auto is_zero = hn::VecFromMask(U32Tag(), hn::Eq(magnitude, hn::Zero(U32Tag())));
    zeros_ = hn::Sub(zeros_, is_zero);
  }

  // All lanes are of one table.
  HWY_INLINE void MergeInto(ChannelTable& table) const {
    const U32Tag d;
    table.AddRange(hn::GetLane(hn::MinOfLanes(d, smallest_less_one_)),
                   hn::GetLane(hn::MaxOfLanes(d, largest_)),
                   hn::GetLane(hn::SumOfLanes(d, zeros_)));
  }

  // Each lane is of another one.
  HWY_INLINE void MergeIntoEach(ChannelTable* tables) const {
    alignas(64) uint32_t smallest[kLaneCount], largest[kLaneCount], zeros[kLaneCount];
    hn::Store(smallest_less_one_, U32Tag(), smallest);
    hn::Store(largest_, U32Tag(), largest);
    hn::Store(zeros_, U32Tag(), zeros);
    for (size_t i = 0; i < kLaneCount; ++i) tables[i].AddRange(smallest[i], largest[i], zeros[i]);
  }

 private:
  V smallest_less_one_, largest_, zeros_;
};

HWY_INLINE V MagnitudesOf(V bits) { return hn::And(bits, SetLanes(~codec::kSignBit)); }

// Where the records of magnitudes are in their table, in bytes.
HWY_INLINE V OffsetsOf(V magnitude) {
  constexpr int kBytesShift = std::countr_zero(kRecordBytes);
  return hn::ShiftLeft<kBytesShift>(hn::ShiftRight<kPlaceShift>(magnitude));
}

// Values whose records are found before they are added to: a processor that knows early where it
// will store need not wait, nor guess, to load.
constexpr size_t kFoundAtOnce = 256;

void CountRunOnTarget(const float* values, size_t count, ChannelTable& table) {
  constexpr VectorLanes kLanes;
  LaneRanges ranges;
  alignas(64) uint32_t offsets[kFoundAtOnce];
  const auto add = [&](const float* from, size_t some) HWY_ATTR {
    for (size_t i = 0; i < some; i += kLaneCount) {
      const V magnitude = MagnitudesOf(kLanes.LoadFloats(from + i));
      ranges.Add(magnitude);
      hn::Store(OffsetsOf(magnitude), U32Tag(), offsets + i);
    }
    for (size_t i = 0; i < some; i += kLaneCount) {
      AddToRecords(kLanes.LoadFloats(from + i), offsets + i, table.records());
    }
  };
  const size_t whole = count - count % kLaneCount;
  for (size_t i = 0; i < whole; i += kFoundAtOnce) {
    add(values + i, HWY_MIN(kFoundAtOnce, whole - i));
  }
  // Zeros, whose record has room, fill the last vector: values by themselves would wait for records
  // that were stored as vectors.
  if (whole < count) {
    alignas(64) float last[kLaneCount] = {};
    std::copy(values + whole, values + count, last);
    add(last, kLaneCount);
  }
  ranges.MergeInto(table);
}

void CountColumnsOnTarget(const float* values, size_t rows, size_t stride, ColumnTables& tables) {
  constexpr VectorLanes kLanes;
  constexpr size_t kVectors = kColumns / kLaneCount, kRows = kFoundAtOnce / kLaneCount;
  const V apart = hn::Mul(hn::Iota(U32Tag(), 0), SetLanes(sizeof(ChannelTable)));
  alignas(64) uint32_t offsets[kFoundAtOnce];
  for (size_t v = 0; v < kVectors; ++v) {
    LaneRanges ranges;
    ChannelTable* const first = &tables[v * kLaneCount];
    for (size_t r = 0; r < rows; r += kRows) {
      const float* const from = values + r * stride + v * kLaneCount;
      const size_t some = HWY_MIN(kRows, rows - r);
      for (size_t i = 0; i < some; ++i) {
        const V magnitude = MagnitudesOf(kLanes.LoadFloats(from + i * stride));
        ranges.Add(magnitude);
        hn::Store(hn::Add(OffsetsOf(magnitude), apart), U32Tag(), offsets + i * kLaneCount);
      }
      for (size_t i = 0; i < some; ++i) {
        AddToRecords(kLanes.LoadFloats(from + i * stride), offsets + i * kLaneCount,
                     first->records());
      }
    }
    ranges.MergeIntoEach(first);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim {
namespace {

DLSIM_EXPORT(CountRunOnTarget);
DLSIM_EXPORT(CountColumnsOnTarget);

constexpr uint64_t kImplicitBit = 1u << 23;

}  // namespace

void ChannelTable::AddEach(const float* values, size_t count, size_t stride) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(values[i * stride]) & ~codec::kSignBit;
    const uint64_t significand = (magnitude & codec::kMantissaMask) | kImplicitBit;
    CountRecord& record = records_[magnitude >> kPlaceShift][i % kWays];
    record.packed += (uint64_t{1} << CountRecord::kCountShift) | significand;
    record.squares += significand * significand;
    AddRange(magnitude - 1, magnitude, magnitude == 0);
  }
}

// Together the ways of a record hold no more than one can.
void ChannelTable::MoveRecord(size_t place) {
  static_assert(kWays == 2);
  constexpr uint64_t kSignificands = (uint64_t{1} << CountRecord::kCountShift) - 1;
  auto& [one, other] = records_[place];
  const uint64_t packed = one.packed + other.packed;
  if (packed == 0) return;
  WideSums& sums = wide_[place];
  sums.count += packed >> CountRecord::kCountShift;
  sums.significands += packed & kSignificands;
  sums.squares += one.squares + other.squares;
  one = other = {};
}

void ChannelTable::EmptyRecords() {
  held_ = 0;
  spilled_ = true;
  if (zeros_ > 0) MoveRecord(0);
  const Range range = Places();
  for (size_t place = range.first; place < range.end; ++place) MoveRecord(place);
}

// Takes off zeros, and the bit that subnormal numbers do not have. Their last place is twice that
// of the binade in which they are.
void ChannelTable::MendSubnormal() {
  wide_[0].count -= zeros_;
  wide_[0].significands -= zeros_ * kImplicitBit;
  wide_[0].squares -= uint128_t{zeros_} * kImplicitBit * kImplicitBit;
  for (WideSums& sums : std::span(wide_).first(2)) {
    sums.significands -= sums.count * kImplicitBit;
    sums.squares -= uint128_t{2 * kImplicitBit} * sums.significands +
                    uint128_t{sums.count} * kImplicitBit * kImplicitBit;
    sums.significands *= 2;
    sums.squares *= 4;
  }
}

void CountRun(std::span<const float> values, ChannelTable& table) {
  constexpr size_t kFew = 4;  // which take less time one by one
  table.Reserve(values.size());
  if (values.size() <= kFew) return table.AddEach(values.data(), values.size(), 1);
  DLSIM_DISPATCH(CountRunOnTarget)(values.data(), values.size(), table);
}

void CountColumns(const float* values, size_t rows, size_t stride, ColumnTables& tables) {
  for (ChannelTable& table : tables) table.Reserve(rows);
  DLSIM_DISPATCH(CountColumnsOnTarget)(values, rows, stride, tables);
}

}  // namespace dlsim
#endif  // HWY_ONCE
