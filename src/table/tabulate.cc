// SPDX-License-Identifier: Apache-2.0
#include "src/table/tabulate.h"

#include <algorithm>
#include <bit>
#include <cmath>
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

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

void AddChunks(const float* values, size_t count, TableSums& sums) {
  for (size_t i = 0; i < count; ++i) sums.Add(values[i]);
}

#else

using D = hn::ScalableTag<int32_t>;
using D64 = hn::RepartitionToWide<hn::RebindToUnsigned<D> >;
using V = hn::Vec<D>;
using V64 = hn::Vec<D64>;
using M = hn::Mask<D>;

// Values that are sorted by binade at a time, and room for a whole vector behind them.
constexpr size_t kChunk = 16384, kSlack = 64;

// Binades that are told apart in one pass.
constexpr int kTogether = 3;

// The lowest magnitude whose binade has two more of normal values below it.
constexpr int32_t kLeastTop = kTogether << 23;

// A pass that takes fewer than one value in this many is the last: the rest lies in very many
// binades and is sorted value by value.
constexpr size_t kFewestTaken = 4;

// Vectors of bytes in which each lane is counted in a byte, and squares of 12 bits in 32 bits.
constexpr size_t kVectorsInLanes = 127;

using DB = hn::Repartition<uint8_t, D>;
using DW = hn::Repartition<uint16_t, D>;
using VB = hn::Vec<DB>;
using VW = hn::Vec<DW>;
using MB = hn::Mask<DB>;

// Significands in a vector of bytes.
HWY_INLINE size_t BytesAtOnce() { return hn::Lanes(DB()); }

// Adds one where the mask is set.
template <class Tag>
HWY_INLINE hn::Vec<Tag> CountIn(Tag d, hn::Mask<Tag> mask, hn::Vec<Tag> counts) {
#if HWY_TARGET <= HWY_AVX3
  return hn::IfThenElse(mask, hn::Add(counts, hn::Set(d, 1)), counts);
#else
  return hn::Sub(counts, hn::VecFromMask(d, mask));
#endif
}
HWY_INLINE VB CountIn(MB mask, VB counts) { return CountIn(DB(), mask, counts); }

HWY_INLINE uint64_t SumOf(V64 lanes) { return hn::GetLane(hn::SumOfLanes(D64(), lanes)); }
HWY_INLINE uint64_t SumOf(VB counts) { return SumOf(hn::SumsOf8(counts)); }
HWY_INLINE uint64_t SumOf32(V lanes) {
  const V64 pairs = hn::BitCast(D64(), lanes);
  return SumOf(hn::Add(hn::And(pairs, hn::Set(D64(), 0xFFFFFFFF)), hn::ShiftRight<32>(pairs)));
}

// The lanes that the mask has, as bits.
template <class Tag>
HWY_INLINE uint64_t BitsOf(Tag d, hn::Mask<Tag> mask) {
  uint8_t bytes[8];
  hn::StoreMaskBits(d, mask, bytes);
  uint64_t bits = 0;
  // No more than was stored, for which a processor would wait.
  std::memcpy(&bits, bytes, (hn::MaxLanes(d) + 7) / 8);
  return bits;
}

// Stores the lanes that the mask has, and returns how many; writes a whole vector.
HWY_INLINE size_t Keep(M mask, V values, int32_t* to) {
#if HWY_TARGET == HWY_AVX2
  // GCC 12 copies the table of Highway 1.0.3 to the stack each time.
  const uint64_t bits = BitsOf(D(), mask);
  const auto lanes = hn::PromoteTo(D(), hn::Load(hn::Rebind<uint8_t, D>(), kKept[bits].data()));
  hn::StoreU(hn::TableLookupLanes(values, hn::IndicesFromVec(D(), lanes)), D(), to);
  return static_cast<size_t>(std::popcount(bits));
#else
  hn::StoreU(hn::Compress(values, mask), D(), to);
  return hn::CountTrue(D(), mask);
#endif
}

// The bytes of significands of one binade, apart and in an order of their own; zeros follow, which
// count as nothing.
struct Planes {
  static constexpr size_t kRoom = kVectorsInLanes * 64;
  alignas(64) uint8_t low[kRoom], middle[kRoom], high[kRoom];
  uint16_t tails[kRoom + 2];
  size_t size = 0;  // whole vectors

  // Takes the bytes of `count` significands, and of zeros behind them up to a whole vector of
  // bytes. Adds the squares of their lowest 12 bits to `low_squares`.
  HWY_NOINLINE void Take(const int32_t* from, size_t count, uint64_t& low_squares) {
    const D d;
    const DB db;
    const DW dw;
    const hn::RebindToSigned<DW> di16;
    const size_t lanes = hn::Lanes(d);
    const VW even = hn::Set(dw, 0xFF), bits12 = hn::Set(dw, (1 << BinadeSums::kFirstBit) - 1);
    V sums0 = hn::Zero(d), sums1 = sums0, sums2 = sums0, sums3 = sums0;
    for (size = 0; size < count; size += BytesAtOnce()) {
      const V m0 = hn::Load(d, from + size), m1 = hn::Load(d, from + size + lanes),
              m2 = hn::Load(d, from + size + 2 * lanes), m3 = hn::Load(d, from + size + 3 * lanes);
      const VW lower0 = Lower(m0, m1), lower1 = Lower(m2, m3);
      const VW upper0 = Upper(m0, m1), upper1 = Upper(m2, m3);
      const VW lows = hn::Or(hn::And(lower0, even), hn::ShiftLeft<8>(lower1));
      const VW middles = hn::Or(hn::ShiftRight<8>(lower0), hn::AndNot(even, lower1));
      const VW highs = hn::Or(upper0, hn::ShiftLeft<8>(upper1));
      hn::Store(hn::BitCast(db, lows), db, low + size);
      hn::Store(hn::BitCast(db, middles), db, middle + size);
      hn::Store(hn::BitCast(db, highs), db, high + size);
      const auto rest0 = hn::BitCast(di16, hn::And(lower0, bits12));
      const auto rest1 = hn::BitCast(di16, hn::And(lower1, bits12));
      sums0 = hn::ReorderWidenMulAccumulate(d, rest0, rest0, sums0, sums1);
      sums2 = hn::ReorderWidenMulAccumulate(d, rest1, rest1, sums2, sums3);
    }
    low_squares += SumOf32(sums0) + SumOf32(sums1) + SumOf32(sums2) + SumOf32(sums3);
  }

  // Adds bit n, and the bits below it of the significands in which it is set.
  template <int n>
  HWY_NOINLINE void AddBit(BinadeSums& sums) const {
    static_assert(n >= 8 && n < 24);
    const DB db;
    const VB bit = hn::Set(db, 1 << n % 8), below = hn::Set(db, (1 << n % 8) - 1);
    VB set = hn::Zero(db);
    V64 lows = hn::Zero(D64()), middles = lows, highs = lows;
    for (size_t i = 0; i < size; i += BytesAtOnce()) {
      const VB in_middle = hn::Load(db, middle + i);
      MB has;
      if constexpr (n < 16) {
        has = hn::TestBit(in_middle, bit);
        middles = hn::Add(middles, SumIn(has, hn::And(in_middle, below)));
      } else {
        const VB in_high = hn::Load(db, high + i);
        has = hn::TestBit(in_high, bit);
        middles = hn::Add(middles, SumIn(has, in_middle));
        if constexpr (n > 16) highs = hn::Add(highs, SumIn(has, hn::And(in_high, below)));
      }
      lows = hn::Add(lows, SumIn(has, hn::Load(db, low + i)));
      set = CountIn(has, set);
    }
    constexpr size_t i = n - BinadeSums::kFirstBit;
    sums.set[i] += SumOf(set);
    sums.below[i] +=
        SumOf(hn::Add(hn::Add(lows, hn::ShiftLeft<8>(middles)), hn::ShiftLeft<16>(highs)));
  }

  // Adds the significands themselves, and of those that round up what up to 6 bits tell.
  HWY_NOINLINE void AddWhole(BinadeSums& sums) const {
    const DB db;
    const VB zero = hn::Zero(db), leading = hn::Set(db, 0x80);
    V64 lows = hn::Zero(D64()), middles = lows, highs = lows;
    VB powers = zero, up2 = zero, up3 = zero, up4 = zero, up5 = zero, up6 = zero;
    for (size_t i = 0; i < size; i += BytesAtOnce()) {
      const VB in_low = hn::Load(db, low + i), in_middle = hn::Load(db, middle + i),
               in_high = hn::Load(db, high + i);
      lows = hn::Add(lows, hn::SumsOf8(in_low));
      middles = hn::Add(middles, hn::SumsOf8(in_middle));
      highs = hn::Add(highs, hn::SumsOf8(in_high));
      const VB mantissa = hn::Or(hn::Or(in_low, in_middle), hn::Xor(in_high, leading));
      powers = CountIn(hn::Eq(mantissa, zero), powers);
      const auto at_least = [&](int bits) HWY_ATTR {
        const VB ones = hn::Set(db, static_cast<uint8_t>(256 - (128 >> bits)));
        return hn::Eq(hn::And(in_high, ones), ones);
      };
      up2 = CountIn(at_least(2), up2);
      up3 = CountIn(at_least(3), up3);
      up4 = CountIn(at_least(4), up4);
      up5 = CountIn(at_least(5), up5);
      up6 = CountIn(at_least(6), up6);
    }
    sums.significands += SumOf(lows) + (SumOf(middles) << 8) + (SumOf(highs) << 16);
    sums.powers += SumOf(powers);
    sums.rounding_up[1] += SumOf(up2);
    sums.rounding_up[2] += SumOf(up3);
    sums.rounding_up[3] += SumOf(up4);
    sums.rounding_up[4] += SumOf(up5);
    sums.rounding_up[5] += SumOf(up6);
  }

  // Adds the significands whose upper byte has all bits, which round up for 7 bits and perhaps
  // more.
  HWY_NOINLINE void AddTails(BinadeSums& sums) {
    static_assert(Binade::kFewestTailBits == 7);
    const DB db;
    const VB all = hn::Set(db, 0xFF);
    size_t count = 0;
    for (size_t i = 0; i < size; i += BytesAtOnce()) {
      uint64_t mask = BitsOf(db, hn::Eq(hn::Load(db, high + i), all));
      const auto take = [&] {
        tails[count] = static_cast<uint16_t>(i + static_cast<size_t>(std::countr_zero(mask)));
        count += mask != 0 ? 1 : 0;
        mask &= mask - 1;
      };
      // More than two are rare: so far no branch is hard to predict.
      take();
      take();
      while (mask != 0) take();
    }
    for (size_t i = 0; i < count; ++i) {
      const size_t at = tails[i];
      sums.AddRoundingUp(Binade::kFewestTailBits,
                         0xFF0000u | static_cast<uint32_t>(middle[at] << 8) | low[at]);
    }
  }

 private:
  static HWY_INLINE VW Lower(V a, V b) {
    return hn::OddEven(hn::BitCast(DW(), hn::ShiftLeft<16>(b)), hn::BitCast(DW(), a));
  }
  static HWY_INLINE VW Upper(V a, V b) {
    return hn::OddEven(hn::BitCast(DW(), b), hn::BitCast(DW(), hn::ShiftRight<16>(a)));
  }
  static HWY_INLINE V64 SumIn(MB has, VB bytes) {
    return hn::SumsOf8(hn::IfThenElseZero(has, bytes));
  }
};

// Adds significands of one binade; zeros follow them up to a whole vector of bytes.
HWY_NOINLINE void AddSignificands(const int32_t* from, size_t count, Planes& planes,
                                  BinadeSums& sums) {
  sums.count += count;
  const size_t at_once = kVectorsInLanes * BytesAtOnce();
  for (size_t begin = 0; begin < count; begin += at_once) {
    planes.Take(from + begin, std::min(at_once, count - begin), sums.low_squares);
    planes.AddBit<12>(sums);
    planes.AddBit<13>(sums);
    planes.AddBit<14>(sums);
    planes.AddBit<15>(sums);
    planes.AddBit<16>(sums);
    planes.AddBit<17>(sums);
    planes.AddBit<18>(sums);
    planes.AddBit<19>(sums);
    planes.AddBit<20>(sums);
    planes.AddBit<21>(sums);
    planes.AddBit<22>(sums);
    sums.rounding_up[0] = sums.set[22 - BinadeSums::kFirstBit];
    planes.AddWhole(sums);
    planes.AddTails(sums);
  }
}

// Room for the values of a chunk: those of a few binades, and what is left, as magnitudes.
struct Room {
  alignas(64) int32_t binades[kTogether][kChunk + kSlack];
  alignas(64) int32_t rest[kChunk + kSlack];
  Planes planes;
};

// Adds magnitudes in any number of binades, sorted value by value.
HWY_NOINLINE void AddSorted(const int32_t* magnitudes, size_t count, Room& room, TableSums& sums) {
  uint32_t begin[256], end[256] = {};
  for (size_t i = 0; i < count; ++i) ++end[static_cast<uint32_t>(magnitudes[i]) >> 23];
  // Each binade begins at a whole vector of bytes, and zeros fill up the one before.
  const auto lanes = static_cast<uint32_t>(BytesAtOnce());
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
    sums.AddMagnitude(static_cast<uint32_t>(sorted[i]) & codec::kMantissaMask);
  }
  for (size_t e = 1; e < 255; ++e) {
    if (begin[e] == end[e]) continue;
    AddSignificands(sorted + begin[e], end[e] - begin[e], room.planes,
                    sums.Of(static_cast<int>(e) - 127));
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
    std::memset(ends[b], 0, BytesAtOnce() * sizeof(int32_t));
    AddSignificands(room.binades[b], in_binade, room.planes, sums.Of(e - b - 127));
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
  const auto load_signed = [&](size_t i)
                               HWY_ATTR { return hn::LoadU(d, i < whole ? bits + i : last); };
  const auto load = [&](size_t i) HWY_ATTR { return hn::And(load_signed(i), magnitude); };
  // Negative values are negative as integers, too.
  V highest = hn::Zero(d), highest_positive = highest;
  for (size_t i = 0; i < count; i += lanes) {
    const V v = load_signed(i);
    highest = hn::Max(highest, hn::And(v, magnitude));
    highest_positive = hn::Max(highest_positive, v);
  }
  const int32_t top = hn::GetLane(hn::MaxOfLanes(d, highest));
  if (top >= 0x7F800000 || top < kLeastTop) {
    size_t finite = 0;
    for (size_t i = 0; i < count; ++i) {
      const int32_t m = std::bit_cast<int32_t>(values[i]) & 0x7FFFFFFF;
      if (m < 0x7F800000) {
        sums.absmax = std::max(sums.absmax, static_cast<uint32_t>(m));
        if (!std::signbit(values[i]))
          sums.largest = std::max(sums.largest, static_cast<uint32_t>(m));
        room.rest[finite++] = m;
      } else {
        sums.Add(values[i]);
      }
    }
    return AddSorted(room.rest, finite, room, sums);
  }
  sums.absmax = std::max(sums.absmax, static_cast<uint32_t>(top));
  const int32_t largest = hn::GetLane(hn::MaxOfLanes(d, highest_positive));
  sums.largest = std::max(sums.largest, static_cast<uint32_t>(largest));
  Rest rest = AddHighest(load, count, top, room, sums);
  sums.zeros += rest.zeros;
  const auto load_rest = [&](size_t i) HWY_ATTR { return hn::Load(d, room.rest + i); };
  size_t before = count;
  while ((before - rest.count) * kFewestTaken >= before && rest.count > 0 &&
         rest.top >= kLeastTop) {
    before = rest.count;
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

// Of the loops below compilers make vectors of the target.

uint32_t FiniteMagnitude(float value) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & ~codec::kSignBit;
  return magnitude & codec::MaskOf(magnitude < codec::kInfinityBits);
}

uint32_t Largest(const float* values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) largest = codec::Max(largest, FiniteMagnitude(values[i]));
  return largest;
}

void RaiseEach(const float* HWY_RESTRICT values, size_t count, uint32_t* HWY_RESTRICT maxima) {
  for (size_t i = 0; i < count; ++i) maxima[i] = codec::Max(maxima[i], FiniteMagnitude(values[i]));
}

// Few values are sorted, and their binades found, in vectors by hand: compilers take twice as long.

#if HWY_TARGET == HWY_SCALAR

void SortEach(const int32_t* keys, size_t count, int32_t* sorted) {
  std::sort(sorted, std::copy(keys, keys + count, sorted));
}

// Sets the bits of the places at which an exponent is not the one before; `count`: up to 64.
uint64_t WhereBinadesBegin(const float* values, size_t count) {
  uint64_t places = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t change =
        std::bit_cast<uint32_t>(values[i]) ^ std::bit_cast<uint32_t>(values[i - 1]);
    places |= uint64_t{(change & codec::kInfinityBits) != 0} << i;
  }
  return places;
}

void SumGroups(const float* values, std::span<const ValueGroup> groups, GroupErrors* errors) {
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t place = 0; place < kSpacings; ++place) {
      const uint32_t spacing = SpacingAt(place);
      uint64_t sum = 0;
      for (uint32_t i = 0; i < groups[g].count; ++i) {
        const uint32_t low = groups[g].SignificandOf(values[groups[g].begin + i]) & (spacing - 1);
        const uint64_t distance = std::min(low, spacing - low);
        sum += distance * distance;
      }
      errors[g][place % 2][place / 2] = sum;
    }
  }
}

#else

// The bits of the first values, of which there is at least one; zeros behind them.
HWY_INLINE V LoadFirst(const float* values, size_t count) {
  const D d;
  const auto* const bits = reinterpret_cast<const int32_t*>(values);
  if (count >= hn::Lanes(d)) return hn::LoadU(d, bits);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET <= HWY_AVX3
  return hn::MaskedLoad(hn::FirstN(d, count), d, bits);
#else
  alignas(64) int32_t first[kSlack] = {};
  std::memcpy(first, values, count * sizeof(float));
  return hn::Load(d, first);
#endif
}

// The place of each key is the number of those that come before it: of few keys that is found
// sooner than by sorting.
void SortEach(const int32_t* keys, size_t count, int32_t* sorted) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  alignas(64) int32_t places[kSlack];
  for (size_t begin = 0; begin < count; begin += lanes) {
    const size_t end = std::min(begin + lanes, count);
    const V own = hn::LoadU(d, keys + begin);
    // Of equal keys the first comes first.
    V larger_before = hn::Zero(d), others = larger_before;
    for (size_t i = 0; i < begin; ++i) {
      larger_before = CountIn(d, hn::Gt(hn::Set(d, keys[i]), own), larger_before);
    }
    for (size_t i = begin; i < end; ++i) {
      const V key = hn::Set(d, keys[i]);
      const M later = hn::Gt(hn::Iota(d, 0), hn::Set(d, static_cast<int32_t>(i - begin)));
      const M before = hn::Or(hn::Gt(own, key), hn::And(hn::Eq(own, key), later));
      others = CountIn(d, before, others);
    }
    for (size_t i = end; i < count; ++i) {
      others = CountIn(d, hn::Gt(own, hn::Set(d, keys[i])), others);
    }
    const V smaller_before = hn::Sub(hn::Set(d, static_cast<int32_t>(begin)), larger_before);
    hn::Store(hn::Add(smaller_before, others), d, places);
    for (size_t i = begin; i < end; ++i) sorted[places[i - begin]] = keys[i];
  }
}

uint64_t WhereBinadesBegin(const float* values, size_t count) {
  const D d;
  const V exponent = hn::Set(d, 0x7F800000);
  uint64_t places = 0;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const V change =
        hn::Xor(LoadFirst(values + i, count - i), LoadFirst(values + i - 1, count - i));
    places |= BitsOf(d, hn::Ne(hn::And(change, exponent), hn::Zero(d))) << i;
  }
  return places;
}

// A lane is a spacing: groups mostly have fewer values than there are quanta.
void SumGroups(const float* values, std::span<const ValueGroup> groups, GroupErrors* errors) {
  alignas(64) std::array<uint32_t, kSpacings> spacings;
  for (size_t i = 0; i < kSpacings; ++i) spacings[i] = SpacingAt(i);
  const hn::CappedTag<uint32_t, kSpacings> d;
  const hn::RepartitionToWide<decltype(d)> d64;
  for (size_t place = 0; place < kSpacings; place += hn::Lanes(d)) {
    const auto spacing = hn::Load(d, spacings.data() + place);
    const auto below = hn::Sub(spacing, hn::Set(d, 1));
    for (size_t g = 0; g < groups.size(); ++g) {
      auto even = hn::Zero(d64), odd = even;
      for (uint32_t i = 0; i < groups[g].count; ++i) {
        const uint32_t significand = groups[g].SignificandOf(values[groups[g].begin + i]);
        const auto low = hn::And(hn::Set(d, significand), below);
        const auto near = hn::Min(low, hn::Sub(spacing, low));
        const auto next = hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, near)));
        even = hn::Add(even, hn::MulEven(near, near));
        odd = hn::Add(odd, hn::MulEven(next, next));
      }
      hn::StoreU(even, d64, errors[g][0].data() + place / 2);
      hn::StoreU(odd, d64, errors[g][1].data() + place / 2);
    }
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
DLSIM_EXPORT(SortEach);
DLSIM_EXPORT(WhereBinadesBegin);
DLSIM_EXPORT(SumGroups);

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

void SortFew(std::span<uint32_t> keys) {
  // Signed integers in the order of the keys, with room for a vector behind them.
  constexpr size_t kRoom = 16;
  std::array<int32_t, TensorTable::kMostValues + kRoom> from;
  std::array<int32_t, TensorTable::kMostValues> sorted;
  for (size_t i = 0; i < keys.size(); ++i) {
    from[i] = static_cast<int32_t>(keys[i] ^ codec::kSignBit);
  }
  std::fill_n(from.begin() + static_cast<std::ptrdiff_t>(keys.size()), kRoom, 0);
  DLSIM_DISPATCH(SortEach)(from.data(), keys.size(), sorted.data());
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<uint32_t>(sorted[i]) ^ codec::kSignBit;
  }
}

size_t FindGroups(std::span<const float> values, ValueGroup* groups) {
  if (values.empty()) return 0;
  const auto bits = [&](size_t i) { return std::bit_cast<uint32_t>(values[i]) & ~codec::kSignBit; };
  size_t count = 0;
  const auto begin_at = [&](size_t i) {
    if (count > 0) groups[count - 1].count = static_cast<uint32_t>(i) - groups[count - 1].begin;
    const uint32_t magnitude = bits(i);
    const auto biased = static_cast<int>(magnitude >> 23);
    const int shift = biased > 0 ? 0 : std::countl_zero(magnitude) - 8;
    groups[count++] = {static_cast<uint32_t>(i), 0, std::max(biased, 1) - 127 - shift, shift,
                       biased > 0 ? codec::kImplicitBit : 0};
  };
  begin_at(0);
  // Subnormals have but one exponent.
  size_t i = 1;
  for (; i < values.size() && bits(i) < codec::kImplicitBit; ++i) {
    if (std::bit_width(bits(i)) != std::bit_width(bits(i - 1))) begin_at(i);
  }
  constexpr size_t kAtOnce = 64;
  for (; i < values.size(); i += kAtOnce) {
    const size_t some = std::min(kAtOnce, values.size() - i);
    uint64_t places = DLSIM_DISPATCH(WhereBinadesBegin)(values.data() + i, some);
    for (; places != 0; places &= places - 1) {
      begin_at(i + static_cast<size_t>(std::countr_zero(places)));
    }
  }
  groups[count - 1].count = static_cast<uint32_t>(values.size()) - groups[count - 1].begin;
  return count;
}

void SumErrors(const float* values, std::span<const ValueGroup> groups, GroupErrors* errors) {
  DLSIM_DISPATCH(SumGroups)(values, groups, errors);
}

void TableSums::Add(float value) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & ~codec::kSignBit;
  if (magnitude >= codec::kInfinityBits) {
    ++(magnitude == codec::kInfinityBits ? inf : nan);
    return;
  }
  absmax = std::max(absmax, magnitude);
  if (!std::signbit(value)) largest = std::max(largest, magnitude);
  AddMagnitude(magnitude);
}

void TableSums::AddMagnitude(uint32_t magnitude) {
  if (magnitude == 0) {
    ++zeros;
    return;
  }
  const PlacedValue value = PlaceValue(magnitude);
  binades[value.place].Add(value.significand);
}

}  // namespace dlsim
#endif  // HWY_ONCE
