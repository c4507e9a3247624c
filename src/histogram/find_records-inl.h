// SPDX-License-Identifier: Apache-2.0
// Finds the records in which HistogramCounter counts values; re-included per SIMD target. Not for
// the scalar target.
#if defined(DLSIM_FIND_RECORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_FIND_RECORDS_INL_H_
#undef DLSIM_FIND_RECORDS_INL_H_
#else
#define DLSIM_FIND_RECORDS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/histogram/add_records-inl.h"
#include "src/histogram/counting_plan.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

// Stores the lanes of a mask one after the other; may write whole vectors. Returns their number.
template <class T>
HWY_INLINE size_t StoreLanesOf(M mask, V bits, T* HWY_RESTRICT to) {
  const U32Tag d;
#if HWY_TARGET <= HWY_AVX3
  hn::StoreU(hn::BitCast(hn::Rebind<T, U32Tag>(), hn::Compress(bits, mask)),
             hn::Rebind<T, U32Tag>(), to);
  return hn::CountTrue(d, mask);
#else
  // Here GCC 12 copies the table of Highway 1.0.3's Compress to the stack at every use.
  if (hn::AllFalse(d, mask)) return 0;
  alignas(64) uint32_t lanes[kLaneCount];
  uint8_t mask_bits[8] = {};
  hn::Store(bits, d, lanes);
  hn::StoreMaskBits(d, mask, mask_bits);
  size_t count = 0;
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    to[count] = std::bit_cast<T>(lanes[lane]);
    count += mask_bits[0] >> lane & 1;
  }
  return count;
#endif
}

// Appends the lanes of a mask, of which there are few.
HWY_INLINE void Append(V bits, M mask, uint32_t* HWY_RESTRICT& to) {
#if HWY_TARGET <= HWY_AVX3
  const U32Tag d;
  const size_t count = hn::CountTrue(d, mask);
  const V compressed = hn::Compress(bits, mask);
  // Short stores cross the border of a cache line less often.
  const hn::Half<U32Tag> half;
  const hn::Half<decltype(half)> quarter;
  hn::StoreU(hn::LowerHalf(quarter, hn::LowerHalf(half, compressed)), quarter, to);
  if (HWY_UNLIKELY(count > kLaneCount / 4)) hn::StoreU(compressed, d, to);
  to += count;
#else
  to += StoreLanesOf(mask, bits, to);
#endif
}

// Adds to the lanes of a mask.
HWY_INLINE V AddWhere(M mask, V addend, V v) {
#if HWY_TARGET <= HWY_AVX3
  return hn::IfThenElse(mask, hn::Add(v, addend), v);
#else
  return hn::Add(v, hn::And(hn::VecFromMask(U32Tag(), mask), addend));
#endif
}

// Where the records of slots are.
template <size_t kBoundaries>
class SlotFinder {
 public:
  explicit SlotFinder(const CountingPlan& counting_plan) {
    const PeriodicPlan& plan = *counting_plan.periodic();
    row_bytes_ = SetLanes(plan.slots * kRecordBytes);
    first_ = SetLanes(plan.first_slot * kRecordBytes);
    std::array<uint32_t, kBoundaries> boundaries;
    boundaries.fill(1u << 23);  // beyond every mantissa
    std::copy(plan.boundaries.begin(), plan.boundaries.end(), boundaries.begin());
    for (size_t b = 0; b < kBoundaries; ++b) last_below_[b] = SetLanes(boundaries[b] - 1);
  }

  // Stores the offsets of a vector of `used` normal numbers; sets those in zones aside.
  HWY_INLINE void Find(const float* /*values*/, V bits, M used, uint32_t* HWY_RESTRICT offsets,
                       uint32_t* HWY_RESTRICT& aside) const {
    const U32Tag d;
    const hn::RebindToSigned<U32Tag> i32;
    const auto mantissa = hn::BitCast(i32, hn::And(bits, SetLanes(codec::kMantissaMask)));
    V at = hn::Add(hn::Mul(hn::ShiftRight<23>(bits), row_bytes_), first_);
    for (size_t b = 0; b < kBoundaries; ++b) {
      const auto reached = hn::Gt(mantissa, hn::BitCast(i32, last_below_[b]));
      at = AddWhere(hn::RebindMask(d, reached), SetLanes(kRecordBytes), at);
    }
    hn::Store(at, d, offsets);
    const M in_zone = hn::And(used, hn::TestBit(at, SetLanes(kRecordBytes)));
    Append(bits, in_zone, aside);
  }

  HWY_INLINE void SetAside(const float*, size_t, const uint32_t*, uint32_t*&) const {}

 private:
  V row_bytes_, first_;
  V last_below_[kBoundaries];
};

// Where the records of bins are, found by cell.
class CellFinder {
 public:
  explicit CellFinder(const CountingPlan& plan) : cells_(plan.general().cells.data()) {}

  // Stores the offsets of a vector of values; unused ones are zeros.
  HWY_INLINE void Find(const float* values, V /*bits*/, M /*used*/, uint32_t* HWY_RESTRICT offsets,
                       uint32_t* HWY_RESTRICT& /*aside*/) const {
    for (size_t lane = 0; lane < kLaneCount; ++lane) {
      uint32_t value;
      std::memcpy(&value, values + lane, sizeof(value));
      const uint64_t record = (cells_[value >> GeneralPlan::kShift] + value) >> 32;
      offsets[lane] = static_cast<uint32_t>(record) * kRecordBytes;
    }
  }

  // Sets the values in crowded cells aside, after all offsets: a vector of them cannot be loaded
  // right after its lanes were stored.
  HWY_INLINE void SetAside(const float* values, size_t count, const uint32_t* offsets,
                           uint32_t* HWY_RESTRICT& aside) const {
    const U32Tag d;
    for (size_t i = 0; i < count; i += kLaneCount) {
      const M crowded =
          hn::Eq(hn::Load(d, offsets + i), SetLanes(GeneralPlan::kCrowded * kRecordBytes));
      Append(VectorLanes().LoadFloats(values + i), crowded, aside);
    }
  }

 private:
  const uint64_t* cells_;
};

// Finds the ranks of values that were set aside: how many phases are not above their mantissas.
// Stores indices of PeriodicPlan::rank_bins.
inline void FindRanks(const uint32_t* HWY_RESTRICT values, size_t count, const PeriodicPlan& plan,
                      uint32_t* HWY_RESTRICT indices) {
  const U32Tag d;
  const hn::RebindToSigned<U32Tag> i32;
  const V row = SetLanes(static_cast<uint32_t>(plan.ranks()));
  for (size_t i = 0; i < count; i += kLaneCount) {
    const V bits = hn::LoadU(d, values + i);
    const auto mantissa = hn::BitCast(i32, hn::And(bits, SetLanes(codec::kMantissaMask)));
    V rank = hn::Zero(d);
    for (const uint32_t phase : plan.phases) {
      const auto below = hn::Gt(hn::BitCast(i32, SetLanes(phase)), mantissa);
      rank = AddWhere(hn::Not(hn::RebindMask(d, below)), SetLanes(1), rank);
    }
    const V exponent = hn::And(hn::ShiftRight<23>(bits), SetLanes(0xFF));
    hn::StoreU(hn::Add(hn::Mul(exponent, row), rank), d, indices + i);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
