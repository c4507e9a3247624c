// SPDX-License-Identifier: Apache-2.0
#include "src/table/tabulate.h"

#include <algorithm>
#include <bit>
#include <cstring>

#ifndef DLSIM_TABULATE_ONCE
#define DLSIM_TABULATE_ONCE
namespace dlsim {

// The lanes that each mask of eight has, the first ones first.
alignas(64) constexpr auto kKept = [] {
  std::array<std::array<uint8_t, 8>, 256> kept = {};
  for (unsigned mask = 0; mask < 256; ++mask) {
    size_t count = 0;
    for (uint8_t lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) != 0) kept[mask][count++] = lane;
    }
  }
  return kept;
}();

}  // namespace dlsim
#endif  // DLSIM_TABULATE_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/table/tabulate.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "src/codec/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void AddChunks(const float* values, size_t count, TableSums& sums) {
  for (size_t i = 0; i < count; ++i) sums.Add(values[i]);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<int32_t>;
using D64 = hn::RepartitionToWide<hn::RebindToUnsigned<D> >;
using V = hn::Vec<D>;
using V64 = hn::Vec<D64>;
using M = hn::Mask<D>;

// Values that are sorted by binade at a time, and room for a whole vector behind them.
constexpr size_t kChunk = 8192, kSlack = 64;

// Binades that are told apart in one pass.
constexpr int kTogether = 3;

// The lowest magnitude whose binade has two more of normal values below it.
constexpr int32_t kLeastTop = kTogether << 23;

// After so many passes what is left is sorted value by value: it lies in very many binades.
constexpr int kMostPasses = 4;

// Vectors whose lanes can be added in 32 bits; of these the count takes the upper 8 next to a sum
// of values below 2^16.
constexpr size_t kVectorsInLanes = 255;
constexpr int kCountShift = 24;

HWY_INLINE uint64_t SumOf32(V lanes) {
  const D64 d64;
  const V64 pairs = hn::BitCast(d64, lanes);
  const V64 even = hn::And(pairs, hn::Set(d64, 0xFFFFFFFF));
  return hn::GetLane(hn::SumOfLanes(d64, hn::Add(even, hn::ShiftRight<32>(pairs))));
}

// Adds one where the mask is set.
HWY_INLINE V CountIn(M mask, V counts) {
#if HWY_TARGET <= HWY_AVX3
  return hn::IfThenElse(mask, hn::Add(counts, hn::Set(D(), 1)), counts);
#else
  return hn::Sub(counts, hn::VecFromMask(D(), mask));
#endif
}

// Stores the lanes that the mask has, and returns how many; writes a whole vector.
HWY_INLINE size_t Keep(M mask, V values, int32_t* to) {
#if HWY_TARGET == HWY_AVX2
  // GCC 12 copies the table of Highway 1.0.3 to the stack each time.
  uint8_t bits[8];
  hn::StoreMaskBits(D(), mask, bits);
  const auto lanes = hn::PromoteTo(D(), hn::Load(hn::Rebind<uint8_t, D>(), kKept[bits[0]].data()));
  hn::StoreU(hn::TableLookupLanes(values, hn::IndicesFromVec(D(), lanes)), D(), to);
  return static_cast<size_t>(std::popcount(bits[0]));
#else
  hn::StoreU(hn::Compress(values, mask), D(), to);
  return hn::CountTrue(D(), mask);
#endif
}

HWY_INLINE V AddIn(M mask, V sums, V values) {
#if HWY_TARGET <= HWY_AVX3
  return hn::IfThenElse(mask, hn::Add(sums, values), sums);
#else
  return hn::Add(sums, hn::IfThenElseZero(mask, values));
#endif
}

// Adds significands of one binade; zeros follow them up to a whole vector, and count as nothing.
HWY_NOINLINE void AddSignificands(const int32_t* from, size_t count, BinadeSums& sums) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kTailRoom = kVectorsInLanes * 16 + kSlack;
  alignas(64) int32_t tail[kTailRoom];
  sums.count += count;
  for (size_t begin = 0; begin < count; begin += kVectorsInLanes * lanes) {
    const size_t end = std::min(count, begin + kVectorsInLanes * lanes);
    const V zero = hn::Zero(d);
    V powers = zero, significands = zero, squares = zero;
    V up2 = zero, up3 = zero, up4 = zero, up5 = zero, up6 = zero;
    // Of the lower bits counts lie above the sums.
    V both12 = zero, both13 = zero, both14 = zero, both15 = zero, both16 = zero;
    V set17 = zero, set18 = zero, set19 = zero, set20 = zero, set21 = zero, set22 = zero;
    V below17 = zero, below18 = zero, below19 = zero, below20 = zero, below21 = zero,
      below22 = zero;
    size_t tail_count = 0;
    for (size_t i = begin; i < end; i += lanes) {
      const V m = hn::Load(d, from + i);
      const auto at_least = [&](int bits) HWY_ATTR {
        return hn::Gt(m, hn::Set(d, (1 << 24) - (1 << (23 - bits)) - 1));
      };
      const auto add_bit = [&](int n, V& set, V& below) HWY_ATTR {
        const M has = hn::TestBit(m, hn::Set(d, 1 << n));
        set = CountIn(has, set);
        below = AddIn(has, below, hn::And(m, hn::Set(d, (1 << n) - 1)));
      };
      const auto add_low_bit = [&](int n, V& both) HWY_ATTR {
        const M has = hn::TestBit(m, hn::Set(d, 1 << n));
        const V below = hn::And(m, hn::Set(d, (1 << n) - 1));
        both = AddIn(has, both, hn::Or(below, hn::Set(d, 1 << kCountShift)));
      };
      significands = hn::Add(significands, m);
      powers = CountIn(hn::Eq(m, hn::Set(d, 1 << 23)), powers);
      const V low = hn::And(m, hn::Set(d, (1 << BinadeSums::kFirstBit) - 1));
      squares = hn::Add(squares, hn::Mul(low, low));
      add_low_bit(12, both12);
      add_low_bit(13, both13);
      add_low_bit(14, both14);
      add_low_bit(15, both15);
      add_low_bit(16, both16);
      add_bit(17, set17, below17);
      add_bit(18, set18, below18);
      add_bit(19, set19, below19);
      add_bit(20, set20, below20);
      add_bit(21, set21, below21);
      add_bit(22, set22, below22);
      up2 = CountIn(at_least(2), up2);
      up3 = CountIn(at_least(3), up3);
      up4 = CountIn(at_least(4), up4);
      up5 = CountIn(at_least(5), up5);
      up6 = CountIn(at_least(6), up6);
      const M in_tail = at_least(Binade::kFewestTailBits);
      if (!hn::AllFalse(d, in_tail)) {
        tail_count += Keep(in_tail, m, tail + tail_count);
      }
    }
    sums.powers += SumOf32(powers);
    sums.significands += SumOf32(significands);
    sums.low_squares += SumOf32(squares);
    const V both[] = {both12, both13, both14, both15, both16};
    const V set[] = {set17, set18, set19, set20, set21, set22};
    const V below[] = {below17, below18, below19, below20, below21, below22};
    for (size_t i = 0; i < 5; ++i) {
      sums.set[i] += SumOf32(hn::BitCast(d, hn::ShiftRight<kCountShift>(hn::BitCast(du, both[i]))));
      sums.below[i] += SumOf32(hn::And(both[i], hn::Set(d, (1 << kCountShift) - 1)));
    }
    for (size_t i = 0; i < 6; ++i) {
      sums.set[i + 5] += SumOf32(set[i]);
      sums.below[i + 5] += SumOf32(below[i]);
    }
    sums.rounding_up[0] += SumOf32(set22);
    const V up[] = {up2, up3, up4, up5, up6};
    for (size_t i = 0; i < 5; ++i) sums.rounding_up[i + 1] += SumOf32(up[i]);
    for (size_t i = 0; i < tail_count; ++i) {
      sums.AddRoundingUp(Binade::kFewestTailBits, static_cast<uint32_t>(tail[i]));
    }
  }
}

// Room for the values of a chunk: those of a few binades, and what is left, as magnitudes.
struct Room {
  alignas(64) int32_t binades[kTogether][kChunk + kSlack];
  alignas(64) int32_t rest[kChunk + kSlack];
};

// Adds magnitudes in any number of binades, sorted value by value.
HWY_NOINLINE void AddSorted(const int32_t* magnitudes, size_t count, Room& room, TableSums& sums) {
  uint32_t begin[256], end[256] = {};
  for (size_t i = 0; i < count; ++i) ++end[static_cast<uint32_t>(magnitudes[i]) >> 23];
  // Each binade begins at a whole vector, and zeros fill up the one before.
  const auto lanes = static_cast<uint32_t>(hn::Lanes(D()));
  int32_t* const sorted = room.binades[0];
  static_assert(kTogether * (kChunk + kSlack) >= kChunk + 256 * kSlack);
  uint32_t next = 0;
  for (size_t e = 0; e < 256; ++e) {
    begin[e] = next;
    next += end[e];
    while (next % lanes != 0) sorted[next++] = 0;
    end[e] = begin[e];
  }
  for (size_t i = 0; i < count; ++i) {
    const auto bits = static_cast<uint32_t>(magnitudes[i]);
    sorted[end[bits >> 23]++] = static_cast<int32_t>((bits & 0x7FFFFF) | 0x800000);
  }
  for (uint32_t i = begin[0]; i < end[0]; ++i) {
    sums.Add(std::bit_cast<float>(sorted[i] & 0x7FFFFF));  // zeros and subnormals
  }
  for (size_t e = 1; e < 255; ++e) {
    if (begin[e] == end[e]) continue;
    AddSignificands(sorted + begin[e], end[e] - begin[e], sums.Of(static_cast<int>(e) - 127));
  }
}

// Nonzero magnitudes in Room::rest, the largest of them, and zeros that were dropped.
struct Rest {
  size_t count;
  int32_t top;
  size_t zeros;
};

// Adds the highest binades of finite magnitudes, which `load` returns as vectors with zeros behind
// the last, and writes what is below to Room::rest. The highest, `top`, is at
// least kLeastTop.
template <class Load>
HWY_INLINE Rest AddHighest(const Load& load, size_t count, int32_t top, Room& room,
                           TableSums& sums) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const int32_t e = top >> 23;
  const V mantissa = hn::Set(d, 0x7FFFFF), leading = hn::Set(d, 0x800000);
  const V floor0 = hn::Set(d, (e << 23) - 1), floor1 = hn::Set(d, ((e - 1) << 23) - 1),
          floor2 = hn::Set(d, ((e - 2) << 23) - 1);
  int32_t* ends[kTogether] = {room.binades[0], room.binades[1], room.binades[2]};
  int32_t* rest = room.rest;
  V next = hn::Zero(d);
  for (size_t i = 0; i < count; i += lanes) {
    const V v = load(i);
    const M from0 = hn::Gt(v, floor0), from1 = hn::Gt(v, floor1), from2 = hn::Gt(v, floor2);
    const M below = hn::AndNot(from2, hn::Gt(v, hn::Zero(d)));
    const V m = hn::Or(hn::And(v, mantissa), leading);
    ends[0] += Keep(from0, m, ends[0]);
    ends[1] += Keep(hn::AndNot(from0, from1), m, ends[1]);
    ends[2] += Keep(hn::AndNot(from1, from2), m, ends[2]);
    next = hn::Max(next, hn::IfThenElseZero(below, v));
    // Not before what was read: `load` may read from there.
    rest += Keep(below, v, rest);
  }
  const auto left = static_cast<size_t>(rest - room.rest);
  size_t zeros = count - left;
  for (int b = 0; b < kTogether; ++b) {
    const auto in_binade = static_cast<size_t>(ends[b] - room.binades[b]);
    if (in_binade == 0) continue;
    zeros -= in_binade;
    hn::StoreU(hn::Zero(d), d, ends[b]);
    AddSignificands(room.binades[b], in_binade, sums.Of(e - b - 127));
  }
  hn::StoreU(hn::Zero(d), d, rest);
  return {left, hn::GetLane(hn::MaxOfLanes(d, next)), zeros};
}

// Adds the values of a chunk: takes out the highest binades, then the highest of the rest.
void AddChunk(const float* values, size_t count, Room& room, TableSums& sums) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V magnitude = hn::Set(d, 0x7FFFFFFF);
  const auto* const bits = reinterpret_cast<const int32_t*>(values);
  const size_t whole = count / lanes * lanes;
  alignas(64) int32_t last[kSlack] = {};
  std::memcpy(last, values + whole, (count - whole) * sizeof(float));
  const auto load = [&](size_t i) HWY_ATTR {
    return hn::And(hn::LoadU(d, i < whole ? bits + i : last), magnitude);
  };
  V highest = hn::Zero(d);
  for (size_t i = 0; i < count; i += lanes) highest = hn::Max(highest, load(i));
  const int32_t top = hn::GetLane(hn::MaxOfLanes(d, highest));
  if (top >= 0x7F800000 || top < kLeastTop) {
    size_t finite = 0;
    for (size_t i = 0; i < count; ++i) {
      const int32_t m = std::bit_cast<int32_t>(values[i]) & 0x7FFFFFFF;
      if (m < 0x7F800000) {
        sums.absmax = std::max(sums.absmax, static_cast<uint32_t>(m));
        room.rest[finite++] = m;
      } else {
        sums.Add(values[i]);
      }
    }
    return AddSorted(room.rest, finite, room, sums);
  }
  sums.absmax = std::max(sums.absmax, static_cast<uint32_t>(top));
  Rest rest = AddHighest(load, count, top, room, sums);
  sums.zeros += rest.zeros;
  const auto load_rest = [&](size_t i) HWY_ATTR { return hn::Load(d, room.rest + i); };
  for (int pass = 1; pass < kMostPasses && rest.count > 0 && rest.top >= kLeastTop; ++pass) {
    rest = AddHighest(load_rest, rest.count, rest.top, room, sums);
  }
  if (rest.count > 0) AddSorted(room.rest, rest.count, room, sums);
}

void AddChunks(const float* values, size_t count, TableSums& sums) {
  static thread_local Room room;
  for (size_t begin = 0; begin < count; begin += kChunk) {
    AddChunk(values + begin, std::min(kChunk, count - begin), room, sums);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

#if HWY_TARGET == HWY_SCALAR

uint32_t FiniteMagnitude(float value) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & ~codec::kSignBit;
  return magnitude < codec::kInfinityBits ? magnitude : 0;
}

uint32_t Largest(const float* values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::max(largest, FiniteMagnitude(values[i]));
  return largest;
}

void RaiseEach(const float* values, size_t count, uint32_t* maxima) {
  for (size_t i = 0; i < count; ++i) maxima[i] = std::max(maxima[i], FiniteMagnitude(values[i]));
}

#else

// The magnitudes of values, 0 unless finite; zeros behind the last.
HWY_INLINE V FiniteMagnitudes(const float* values, size_t count) {
  const D d;
  alignas(64) int32_t last[kSlack] = {};
  const auto* bits = reinterpret_cast<const int32_t*>(values);
  if (count < hn::Lanes(d)) {
    std::memcpy(last, values, count * sizeof(float));
    bits = last;
  }
  const V magnitudes = hn::And(hn::LoadU(d, bits), hn::Set(d, 0x7FFFFFFF));
  return hn::IfThenElseZero(hn::Lt(magnitudes, hn::Set(d, 0x7F800000)), magnitudes);
}

uint32_t Largest(const float* values, size_t count) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V largest = hn::Zero(d), other = largest;
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    largest = hn::Max(largest, FiniteMagnitudes(values + i, lanes));
    other = hn::Max(other, FiniteMagnitudes(values + i + lanes, lanes));
  }
  for (; i < count; i += lanes) {
    largest = hn::Max(largest, FiniteMagnitudes(values + i, count - i));
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, hn::Max(largest, other))));
}

void RaiseEach(const float* values, size_t count, uint32_t* maxima) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  auto* const to = reinterpret_cast<int32_t*>(maxima);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Max(hn::LoadU(d, to + i), FiniteMagnitudes(values + i, lanes)), d, to + i);
  }
  for (; i < count; ++i) {
    const int32_t magnitude = hn::GetLane(FiniteMagnitudes(values + i, 1));
    to[i] = std::max(to[i], magnitude);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim {
namespace {

DLSIM_EXPORT(AddChunks);
DLSIM_EXPORT(Largest);
DLSIM_EXPORT(RaiseEach);

}  // namespace

void AddToSums(std::span<const float> values, TableSums& sums) {
  DLSIM_DISPATCH(AddChunks)(values.data(), values.size(), sums);
}

uint32_t LargestBits(std::span<const float> values) {
  return DLSIM_DISPATCH(Largest)(values.data(), values.size());
}

void RaiseMagnitudes(std::span<const float> values, uint32_t* maxima) {
  DLSIM_DISPATCH(RaiseEach)(values.data(), values.size(), maxima);
}

void TableSums::Add(float value) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & ~codec::kSignBit;
  if (magnitude >= codec::kInfinityBits) {
    ++(magnitude == codec::kInfinityBits ? inf : nan);
    return;
  }
  if (magnitude == 0) {
    ++zeros;
    return;
  }
  absmax = std::max(absmax, magnitude);
  const auto biased = static_cast<int>(magnitude >> 23);
  if (biased > 0) {
    Of(biased - 127).Add((magnitude & codec::kMantissaMask) | codec::kImplicitBit);
    return;
  }
  const int zeros_above = std::countl_zero(magnitude) - 8;
  Of(-126 - zeros_above).Add(magnitude << zeros_above);
}

}  // namespace dlsim
#endif  // HWY_ONCE
