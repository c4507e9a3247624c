// SPDX-License-Identifier: Apache-2.0
// Adds values to the records in which they are counted; re-included per SIMD target. Not for the
// scalar target.
#if defined(DLSIM_ADD_RECORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_ADD_RECORDS_INL_H_
#undef DLSIM_ADD_RECORDS_INL_H_
#else
#define DLSIM_ADD_RECORDS_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/codec/lanes-inl.h"
#include "src/histogram/counting_tables.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

using V = VectorLanes::V;
using M = VectorLanes::M;
inline constexpr size_t kLaneCount = hn::MaxLanes(U32Tag());

inline constexpr uint32_t kRecordBytes = sizeof(CountRecords);

HWY_INLINE V SetLanes(uint32_t value) { return hn::Set(U32Tag(), value); }

// The 4 records of every 4 values, added to where the offsets say, in bytes. Of each 128 bits, the
// four vectors hold the records of one value after the other.
template <class D, class V64>
HWY_INLINE void AddBlocks(D d, V64 first, V64 second, V64 third, V64 fourth,
                          const uint32_t* HWY_RESTRICT offsets, uint8_t* HWY_RESTRICT table) {
  if constexpr (hn::MaxLanes(D()) == 2) {
    const auto add = [&](V64 record, size_t offset) HWY_ATTR {
      uint64_t* at = reinterpret_cast<uint64_t*>(table + offset);
      hn::Store(hn::Add(hn::Load(d, at), record), d, at);
    };
    std::array<uint64_t, 2> pairs;  // fewer loads
    std::memcpy(pairs.data(), offsets, sizeof(pairs));
    add(first, static_cast<uint32_t>(pairs[0]));
    add(second, pairs[0] >> 32);
    add(third, static_cast<uint32_t>(pairs[1]) + sizeof(CountRecord));
    add(fourth, (pairs[1] >> 32) + sizeof(CountRecord));
  } else {
    const hn::Half<D> half;
    AddBlocks(half, hn::LowerHalf(half, first), hn::LowerHalf(half, second),
              hn::LowerHalf(half, third), hn::LowerHalf(half, fourth), offsets, table);
    AddBlocks(half, hn::UpperHalf(half, first), hn::UpperHalf(half, second),
              hn::UpperHalf(half, third), hn::UpperHalf(half, fourth), offsets + hn::MaxLanes(D()),
              table);
  }
}

// Adds a vector of normal numbers to their records.
HWY_INLINE void AddToRecords(V bits, const uint32_t* HWY_RESTRICT offsets,
                             CountRecords* HWY_RESTRICT records) {
  const hn::Repartition<uint64_t, U32Tag> u64;
  const V significands = hn::Or(hn::And(bits, SetLanes(codec::kMantissaMask)), SetLanes(1u << 23));
  const auto pairs = hn::BitCast(u64, significands);
  const auto odd = hn::ShiftRight<32>(pairs);
  const auto even = hn::And(pairs, hn::Set(u64, 0xFFFFFFFF));
  const auto one = hn::Set(u64, uint64_t{1} << CountRecord::kCountShift);
  const auto even_squares = hn::MulEven(significands, significands);
  const auto odd_squares = hn::MulEven(hn::BitCast(U32Tag(), odd), hn::BitCast(U32Tag(), odd));
  const auto even_packed = hn::Or(even, one), odd_packed = hn::Or(odd, one);
  AddBlocks(u64, hn::InterleaveLower(u64, even_squares, even_packed),
            hn::InterleaveLower(u64, odd_squares, odd_packed),
            hn::InterleaveUpper(u64, even_squares, even_packed),
            hn::InterleaveUpper(u64, odd_squares, odd_packed), offsets,
            reinterpret_cast<uint8_t*>(records));
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
