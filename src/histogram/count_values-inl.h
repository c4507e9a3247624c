// SPDX-License-Identifier: Apache-2.0
// Kernels of HistogramCounter; re-included per SIMD target. Normal numbers are counted in blocks: a
// first pass finds their records, a second one updates these. Not for the scalar target.
#if defined(DLSIM_COUNT_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_COUNT_VALUES_INL_H_
#undef DLSIM_COUNT_VALUES_INL_H_
#else
#define DLSIM_COUNT_VALUES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "hwy/cache_control.h"
#include "src/histogram/add_records-inl.h"
#include "src/histogram/counting_plan.h"
#include "src/histogram/find_records-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

// Values of a block, few enough that where their records are stays in the nearest cache.
inline constexpr size_t kCountBlock = CountingTables::kBlock;

// How far ahead values are fetched into the cache; as many as 2 KiB hold.
inline constexpr size_t kCountPrefetch = 512;

// The largest values of both signs and the smallest magnitude.
class RangeLanes {
  using I32 = hn::RebindToSigned<U32Tag>;

 public:
  RangeLanes()
      : positive_(hn::Zero(I32())),
        negative_(hn::Zero(U32Tag())),
        smallest_(SetLanes(~codec::kSignBit)) {}

  HWY_INLINE void Add(V bits) {
    positive_ = hn::Max(positive_, hn::BitCast(I32(), bits));
    negative_ = hn::Max(negative_, bits);
    smallest_ = hn::Min(smallest_, hn::And(bits, SetLanes(~codec::kSignBit)));
  }

  // Whether all values are normal numbers.
  HWY_INLINE bool IsNormal() const {
    const U32Tag d;
    const auto infinity = SetLanes(codec::kInfinityBits);
    const M special =
        hn::Or(hn::Lt(smallest_, SetLanes(1u << 23)),
               hn::Or(hn::Not(hn::RebindMask(d, hn::Lt(positive_, hn::BitCast(I32(), infinity)))),
                      hn::Not(hn::Lt(negative_, hn::Or(infinity, SetLanes(codec::kSignBit))))));
    return hn::AllFalse(d, special);
  }

  void MergeInto(CountingTables& tables) const {
    const U32Tag d;
    const int32_t positive = hn::GetLane(hn::MaxOfLanes(I32(), positive_));
    const uint32_t negative = hn::GetLane(hn::MaxOfLanes(d, negative_));
    auto& [largest, largest_negative] = tables.largest;
    largest = std::max(largest, static_cast<uint32_t>(std::max(positive, 0)));
    if (negative > codec::kSignBit) {
      largest_negative = std::max(largest_negative, negative & ~codec::kSignBit);
    }
    tables.smallest = std::min(tables.smallest, hn::GetLane(hn::MinOfLanes(d, smallest_)));
  }

 private:
  hn::Vec<I32> positive_;
  V negative_, smallest_;
};

template <class Finder>
class BlockCounter {
 public:
  BlockCounter(const CountingPlan& plan, CountingTables& tables)
      : plan_(plan), tables_(tables), finder_(plan) {}

  void Add(const float* HWY_RESTRICT values, size_t count) {
    bool is_normal = true;  // as the last block was
    for (; count >= kCountBlock; values += kCountBlock, count -= kCountBlock) {
      if (is_normal) is_normal = CountIfNormal(values);
      if (!is_normal) is_normal = Filter(values, kCountBlock);
    }
    if (count > 0) Filter(values, count);
    range_.MergeInto(tables_);
  }

  // Counts the values that wait.
  void AddPending() {
    const U32Tag d;
    uint32_t* aside = tables_.aside.data() + tables_.aside_count;
    float* values = tables_.pending.data();
    // Zeros take up the rest of the last vector: they have records of their own.
    std::fill_n(values + tables_.pending_count, kLaneCount, 0.0f);
    for (size_t i = 0; i < tables_.pending_count; i += kLaneCount) {
      const M used = hn::FirstN(d, tables_.pending_count - i);
      const V bits = kLanes.LoadFloats(values + i);
      range_.Add(hn::IfThenElse(used, bits, SetLanes(std::bit_cast<uint32_t>(values[0]))));
      finder_.Find(values + i, bits, used, offsets_ + i, aside);
      AddToRecords(bits, offsets_ + i, tables_.records.data());
    }
    finder_.SetAside(values, tables_.pending_count, offsets_, aside);
    Advance(aside, kCountBlock);
    tables_.pending_count = 0;
    range_.MergeInto(tables_);
  }

 private:
  static constexpr VectorLanes kLanes{};

  void Advance(const uint32_t* aside, size_t counted) {
    tables_.aside_count = static_cast<size_t>(aside - tables_.aside.data());
    tables_.in_records += counted;
  }

  // Counts a block, unless there are values in it that are no normal numbers.
  HWY_INLINE bool CountIfNormal(const float* HWY_RESTRICT values) {
    const M all = hn::FirstN(U32Tag(), kLaneCount);
    uint32_t* aside = tables_.aside.data() + tables_.aside_count;
    RangeLanes range = range_;
    for (size_t i = 0; i < kCountBlock; i += kLaneCount) {
      hwy::Prefetch(values + i + kCountPrefetch);
      const V bits = kLanes.LoadFloats(values + i);
      range.Add(bits);
      finder_.Find(values + i, bits, all, offsets_ + i, aside);
    }
    if (!range.IsNormal()) return false;
    finder_.SetAside(values, kCountBlock, offsets_, aside);
    range_ = range;
    CountRecords* records = tables_.records.data();
    for (size_t i = 0; i < kCountBlock; i += kLaneCount) {
      AddToRecords(kLanes.LoadFloats(values + i), offsets_ + i, records);
    }
    Advance(aside, kCountBlock);
    return true;
  }

  // Adds the normal numbers among at most a block of values to those that wait, and counts the
  // others. Returns whether there were no others.
  HWY_NOINLINE bool Filter(const float* HWY_RESTRICT values, size_t count) {
    const U32Tag d;
    float* to = tables_.pending.data() + tables_.pending_count;
    size_t zeros = 0;
    for (size_t i = 0; i < count; i += kLaneCount) {
      V bits;
      if (i + kLaneCount <= count) {
        bits = kLanes.LoadFloats(values + i);
      } else {
        alignas(64) float last[kLaneCount] = {};
        std::copy(values + i, values + count, last);
        bits = kLanes.LoadFloats(last);
        zeros -= kLaneCount - (count - i);
      }
      const V magnitude = hn::And(bits, SetLanes(~codec::kSignBit));
      const M is_normal = hn::Lt(hn::Sub(magnitude, SetLanes(1u << 23)),
                                 SetLanes(codec::kInfinityBits - (1u << 23)));
      const M is_zero = hn::Eq(magnitude, hn::Zero(d));
      to += StoreLanesOf(is_normal, bits, to);
      zeros += hn::CountTrue(d, is_zero);
      const M rare = hn::Not(hn::Or(is_normal, is_zero));
      if (HWY_UNLIKELY(!hn::AllFalse(d, rare))) CountRare(bits, rare);
    }
    tables_.zeros += zeros;
    const size_t pending = static_cast<size_t>(to - tables_.pending.data());
    const size_t before = std::exchange(tables_.pending_count, pending);
    if (pending >= kCountBlock) CountPendingBlock();
    return pending - before == count;
  }

  void CountPendingBlock() {
    CountIfNormal(tables_.pending.data());
    tables_.pending_count -= kCountBlock;
    std::copy_n(tables_.pending.begin() + kCountBlock, tables_.pending_count,
                tables_.pending.begin());
  }

  HWY_NOINLINE void CountRare(V bits, M rare) {
    alignas(64) uint32_t lanes[kLaneCount];
    hn::Store(hn::IfThenElseZero(rare, bits), U32Tag(), lanes);
    for (const uint32_t value : lanes) {
      if (value != 0) CountValue(plan_, value, tables_);
    }
  }

  const CountingPlan& plan_;
  CountingTables& tables_;
  Finder finder_;
  RangeLanes range_;
  alignas(64) uint32_t offsets_[kCountBlock];
};

// Counts values, or those that wait if there are none.
template <class Finder>
HWY_NOINLINE void CountWith(const float* values, size_t count, const CountingPlan& plan,
                            CountingTables& tables) {
  BlockCounter<Finder> counter(plan, tables);
  if (count > 0) {
    counter.Add(values, count);
  } else {
    counter.AddPending();
  }
}

inline void CountNormal(const float* values, size_t count, const CountingPlan& plan,
                        CountingTables& tables) {
  if (!plan.periodic()) return CountWith<CellFinder>(values, count, plan, tables);
  const size_t boundaries = plan.periodic()->boundaries.size();
  if (boundaries <= 2) return CountWith<SlotFinder<2>>(values, count, plan, tables);
  if (boundaries <= 4) return CountWith<SlotFinder<4>>(values, count, plan, tables);
  if (boundaries <= 6) return CountWith<SlotFinder<6>>(values, count, plan, tables);
  if (boundaries <= 10) return CountWith<SlotFinder<10>>(values, count, plan, tables);
  CountWith<SlotFinder<16>>(values, count, plan, tables);
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
