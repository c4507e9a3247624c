// SPDX-License-Identifier: Apache-2.0
// Counts at edges close to powers of two, as most thresholds are, over one chunk of finite values;
// re-included per SIMD target.
//
// Below 2^k are just the smaller binades: a byte per value answers for all edges that are powers of
// two. An edge near 2^k has other values below it than 2^k has only if they lie between the two.
// Few values are that close to any power of two (1 in 512 of evenly spread mantissas): these are
// put aside, and what their counts at the edges and at the powers of two differ by is the
// correction.
#if defined(DLSIM_BINADES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_BINADES_INL_H_
#undef DLSIM_BINADES_INL_H_
#else
#define DLSIM_BINADES_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "edges-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

// Returns false if this would not pay, as without lookups in tables of 128 bytes.
#if HWY_TARGET != HWY_AVX3_DL

inline bool CountNearBinades(const float* /*values*/, size_t /*count*/, const ChunkRange& /*range*/,
                             const uint32_t* /*edges*/, size_t /*edge_count*/,
                             uint64_t* /*below*/) {
  return false;
}

#else

// Vectors of bytes whose counts are added up bit by bit in one step.
inline constexpr size_t kTreeLevels = 4;
inline constexpr size_t kBytesAtOnce = 64 << kTreeLevels;
static_assert(kChunkElements % kBytesAtOnce == 0);

using ByteTag = hn::Repartition<int8_t, U32Tag>;

// Binades less that of the smallest value, modulo 128.
struct ChunkBinades {
  alignas(64) std::array<int8_t, kChunkElements> bytes;
  size_t count = 0;  // the padding, which stands for zeros, included
  // The values put aside: at most so many, beyond which this does not pay, and room to store more.
  static constexpr size_t kMostAside = 256;
  alignas(64) std::array<float, kMostAside + 4 * 16> aside;
  size_t aside_count = 0;
};

// The upper 8 bits of the magnitudes of 4 vectors, in any order.
HWY_INLINE VectorLanes::V BinadeBytesOf4(const VectorLanes::V* bits) {
  const auto select = [](uint32_t mask, VectorLanes::V yes, VectorLanes::V no)
                          HWY_ATTR { return hn::IfVecThenElse(VectorLanes().Set(mask), yes, no); };
  const auto pair = [&](VectorLanes::V a, VectorLanes::V b) HWY_ATTR {
    return select(0xFFFF0000, hn::Add(b, b), hn::ShiftRight<15>(a));
  };
  const auto low = pair(bits[0], bits[1]), high = pair(bits[2], bits[3]);
  return select(0xFF00FF00, high, hn::ShiftRight<8>(low));
}

// Less than kNearBelow + kNearAbove for values that may lie between an edge and its power of two,
// and for zeros.
HWY_INLINE VectorLanes::V OffsetInBinade(VectorLanes::V bits) {
  constexpr VectorLanes kLanes;
  return kLanes.And(kLanes.Add(bits, kLanes.Set(kNearBelow)), kLanes.Set(codec::kMantissaMask));
}

HWY_INLINE void PutAside(const VectorLanes::V* bits, ChunkBinades& binades) {
  constexpr VectorLanes kLanes;
  for (size_t v = 0; v < 4; ++v) {
    const auto magnitude = kLanes.And(bits[v], kLanes.Set(~codec::kSignBit));
    const auto near = kLanes.Lt(OffsetInBinade(bits[v]), kLanes.Set(kNearBelow + kNearAbove));
    const auto put = kLanes.MaskAndNot(kLanes.Eq(magnitude, kLanes.Set(0)), near);
    kLanes.StoreFloats(hn::Compress(magnitude, put), &binades.aside[binades.aside_count]);
    binades.aside_count += kLanes.CountTrue(put);
  }
}

// Fills up the last step with zeros, and the last row aside with what is below no edge.
inline void PadBinades(size_t written, uint32_t base, ChunkBinades& binades) {
  binades.count = (written + kBytesAtOnce - 1) / kBytesAtOnce * kBytesAtOnce;
  std::fill_n(&binades.bytes[0] + written, binades.count - written,
              static_cast<int8_t>((0 - base) & 127));
  const size_t aside = binades.aside_count;
  binades.aside_count = (aside + kSumLanes - 1) / kSumLanes * kSumLanes;
  std::fill_n(&binades.aside[0] + aside, binades.aside_count - aside,
              std::numeric_limits<float>::infinity());
}

// Returns false where too many values have to be put aside.
inline bool FindBinades(const float* HWY_RESTRICT values, size_t count, uint32_t base,
                        ChunkBinades& binades) {
  constexpr VectorLanes kLanes;
  constexpr size_t kVectors = 4, kLaneCount = 16;
  const ByteTag i8;
  const auto end = kLanes.Set(kNearBelow + kNearAbove);
  const auto offset = hn::Set(i8, static_cast<int8_t>(base)), index = hn::Set(i8, 127);
  size_t i = 0;
  for (; i < count; i += kVectors * kLaneCount) {
    VectorLanes::V bits[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      // A lone row has two vectors.
      const bool beyond = v >= 2 && i + kSumLanes >= count;
      bits[v] = beyond ? kLanes.Set(0) : kLanes.LoadFloats(values + i + v * kLaneCount);
    }
    const auto bytes = hn::BitCast(i8, BinadeBytesOf4(bits));
    hn::StoreU(hn::And(hn::Sub(bytes, offset), index), i8, &binades.bytes[i]);
    const auto nearest = kLanes.Min(kLanes.Min(OffsetInBinade(bits[0]), OffsetInBinade(bits[1])),
                                    kLanes.Min(OffsetInBinade(bits[2]), OffsetInBinade(bits[3])));
    if (HWY_LIKELY(kLanes.AllFalse(kLanes.Lt(nearest, end)))) continue;
    PutAside(bits, binades);
    if (binades.aside_count > ChunkBinades::kMostAside) return false;
  }
  PadBinades(i, base, binades);
  return true;
}

// Counts, for each bit, the bytes that have it.
HWY_INLINE void AddBitCounts(__m512i bytes, uint64_t weight, uint64_t* counts) {
  for (size_t bit = 0; bit < 8; ++bit) {
    const __mmask64 mask =
        _mm512_test_epi8_mask(bytes, _mm512_set1_epi8(static_cast<char>(1 << bit)));
    counts[bit] += weight * static_cast<uint64_t>(std::popcount(static_cast<uint64_t>(mask)));
  }
}

// Adds 2^kLevel vectors of single bits, starting at `bytes`, to the bit planes of their sums and
// returns the carry. A table says of each byte which of 8 edges it is below.
template <size_t kLevel>
HWY_INLINE __m512i AddToPlanes(const int8_t* bytes, __m512i low, __m512i high, __m512i* planes) {
  if constexpr (kLevel == 0) {
    return _mm512_permutex2var_epi8(low, _mm512_load_si512(bytes), high);
  } else {
    const __m512i a = AddToPlanes<kLevel - 1>(bytes, low, high, planes);
    const __m512i b = AddToPlanes<kLevel - 1>(bytes + (size_t{32} << kLevel), low, high, planes);
    __m512i& sum = planes[kLevel - 1];
    const __m512i carry = _mm512_ternarylogic_epi64(sum, a, b, 0xE8);  // of two or three bits
    sum = _mm512_ternarylogic_epi64(sum, a, b, 0x96);
    return carry;
  }
}

// Counts the bytes below at most 8 ascending limits.
inline void CountBytesBelow(const ChunkBinades& binades, const int8_t* limits, size_t limit_count,
                            uint64_t* below) {
  alignas(64) std::array<uint8_t, 128> table{};
  size_t from = 0;
  for (size_t e = 0; e < limit_count; ++e) {
    const auto limit = static_cast<size_t>(limits[e]);
    std::fill(table.begin() + static_cast<std::ptrdiff_t>(from),
              table.begin() + static_cast<std::ptrdiff_t>(limit), static_cast<uint8_t>(0xFF << e));
    from = limit;
  }
  const __m512i low = _mm512_load_si512(table.data()), high = _mm512_load_si512(&table[64]);
  uint64_t counts[8] = {};
  __m512i planes[kTreeLevels];
  for (__m512i& plane : planes) plane = _mm512_setzero_si512();
  for (size_t i = 0; i < binades.count; i += kBytesAtOnce) {
    AddBitCounts(AddToPlanes<kTreeLevels>(&binades.bytes[i], low, high, planes), 1 << kTreeLevels,
                 counts);
  }
  for (size_t p = 0; p < kTreeLevels; ++p) AddBitCounts(planes[p], uint64_t{1} << p, counts);
  std::copy_n(counts, limit_count, below);
}

// Counts magnitudes, zeros included, below ascending edges that are near powers of two and inside
// the range of the chunk, which spans fewer than 127 binades.
inline bool CountNearBinades(const float* values, size_t count, const ChunkRange& range,
                             const uint32_t* edges, size_t edge_count, uint64_t* below) {
  constexpr size_t kMost = 8;
  const uint32_t base = range.smallest >> 23;
  ChunkBinades binades;
  if (!FindBinades(values, count, base, binades)) return false;
  const int zero = static_cast<int>((0 - base) & 127);
  const uint64_t zeros = range.zeros + binades.count - count;
  for (size_t first = 0; first < edge_count; first += kMost) {
    const size_t group = std::min(kMost, edge_count - first);
    std::array<int8_t, kMost> limits;
    std::array<uint32_t, kMost> powers;
    std::array<uint64_t, kMost> aside_below{}, aside_below_powers{};
    for (size_t e = 0; e < group; ++e) {
      const uint32_t binade = (edges[first + e] + kNearBelow) >> 23;
      powers[e] = binade << 23;
      limits[e] = static_cast<int8_t>(binade - base);
    }
    CountBytesBelow(binades, limits.data(), group, below + first);
    CountBelowInRows(binades.aside.data(), binades.aside_count, edges + first, group,
                     aside_below.data());
    CountBelowInRows(binades.aside.data(), binades.aside_count, powers.data(), group,
                     aside_below_powers.data());
    for (size_t e = 0; e < group; ++e) {
      below[first + e] += range.zeros + aside_below[e] - aside_below_powers[e];
      if (zero < limits[e]) below[first + e] -= zeros;
    }
  }
  return true;
}

#endif  // HWY_TARGET != HWY_AVX3_DL

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
