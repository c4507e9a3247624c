// SPDX-License-Identifier: Apache-2.0
// Kernels of thresholds.h over one chunk, of whole rows of kSumLanes values; re-included per SIMD
// target. Magnitudes are compared as integers.
#if defined(DLSIM_EDGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_EDGES_INL_H_
#undef DLSIM_EDGES_INL_H_
#else
#define DLSIM_EDGES_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "chunk_range.h"
#include "codec-inl.h"
#include "hwy/cache_control.h"
#include "measure_element.h"
#include "sum_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

inline ChunkRange RangeOfRows(const float* values, size_t count) {
  return RangeByElement({values, count});
}

inline void CountBelowInRows(const float* values, size_t count, const uint32_t* edges,
                             size_t edge_count, uint64_t* below) {
  for (size_t e = 0; e < edge_count; ++e) {
    for (size_t i = 0; i < count; ++i) below[e] += MagnitudeBits(values[i]) < edges[e];
  }
}

inline void CountBinadesInRows(const float* values, size_t count, uint32_t phase,
                               const int8_t* binades, size_t edge_count, uint64_t* below) {
  for (size_t e = 0; e < edge_count; ++e) {
    const uint32_t edge = phase + (static_cast<uint32_t>(binades[e] + 127) << 23);
    CountBelowInRows(values, count, &edge, 1, below + e);
  }
}

inline void SumBelowInRows(const float* values, size_t count, const uint32_t* edges,
                           size_t edge_count, double* sums) {
  for (size_t e = 0; e < edge_count; ++e) {
    SumLanes lanes{};
    for (size_t i = 0; i < count; ++i) {
      if (MagnitudeBits(values[i]) < edges[e]) AddSquare(values[i], i, lanes);
    }
    sums[e] = AddLanes(lanes);
  }
}

inline void SumBelowRareEdges(const float* values, size_t count, const uint32_t* edges,
                              size_t edge_count, double* sums) {
  SumBelowInRows(values, count, edges, edge_count, sums);
}

#else

// Sums that are kept in registers beside what they are made from.
inline constexpr size_t kMostSums = HWY_TARGET <= HWY_AVX3 ? 16 : 8;

HWY_INLINE VectorLanes::V LoadMagnitudes(const float* from) {
  constexpr VectorLanes kLanes;
  return kLanes.And(kLanes.LoadFloats(from), kLanes.Set(~codec::kSignBit));
}

// Counts the zeros of a chunk that has some and finds the smallest magnitude beside them.
inline void FindZeros(const float* HWY_RESTRICT values, size_t count, ChunkRange& range) {
  constexpr VectorLanes kLanes;
  constexpr auto kU32 = VectorLanes::kU32;
  auto smallest = kLanes.Set(~0u);
  for (size_t i = 0; i < count; i += VectorLanes::Count()) {
    const auto magnitude = LoadMagnitudes(values + i);
    range.zeros += kLanes.CountTrue(kLanes.Eq(magnitude, kLanes.Set(0)));
    // Zero less one is the largest number.
    smallest = hn::Min(smallest, kLanes.Sub(magnitude, kLanes.Set(1)));
  }
  range.smallest = hn::GetLane(hn::MinOfLanes(kU32, smallest)) + 1;
}

inline ChunkRange RangeOfRows(const float* HWY_RESTRICT values, size_t count) {
  using S = SumVectors;
  constexpr size_t kColumns = kSumLanes / S::kLanes < 8 ? kSumLanes / S::kLanes : 8;
  S::V largest = S::Set(0), smallest = S::Set(~codec::kSignBit);
  alignas(64) SumLanes sum_lanes;
  for (size_t lane = 0; lane < kSumLanes; lane += kColumns * S::kLanes) {
    S::Sum sums[kColumns];
    for (S::Sum& sum : sums) sum = S::NoSum();
    for (size_t i = lane; i < count; i += kSumLanes) {
      hwy::Prefetch(values + i + kEdgePrefetch);
      hwy::Prefetch(values + i + kEdgePrefetch + 16);
      for (size_t c = 0; c < kColumns; ++c) {
        const S::V magnitude = S::LoadMagnitudes(values + i + c * S::kLanes);
        largest = S::Max(largest, magnitude);
        smallest = S::Min(smallest, magnitude);
        sums[c] = S::AddSquare(S::Widen(magnitude), sums[c]);
      }
    }
    for (size_t c = 0; c < kColumns; ++c) {
      hn::StoreU(sums[c], S::kF64, &sum_lanes[lane + c * S::kLanes]);
    }
  }
  ChunkRange range;
  range.largest = S::MaxOfLanes(largest);
  if (range.largest >= codec::kInfinityBits) return RangeByElement({values, count});
  range.smallest = hn::GetLane(hn::MinOfLanes(S::kU32, smallest));
  if (range.smallest == 0) FindZeros(values, count, range);
  range.sum_of_squares = AddLanes(sum_lanes);
  return range;
}

// Counts at kEdges edges in one pass.
template <size_t kEdges>
void CountGroup(const float* HWY_RESTRICT values, size_t count, const uint32_t* edges,
                uint64_t* below) {
  constexpr VectorLanes kLanes;
  size_t counts[kEdges] = {};
  for (size_t i = 0; i < count; i += VectorLanes::Count()) {
    const auto magnitude = LoadMagnitudes(values + i);
    for (size_t e = 0; e < kEdges; ++e) {
      counts[e] += kLanes.CountTrue(kLanes.Lt(magnitude, kLanes.Set(edges[e])));
    }
  }
  for (size_t e = 0; e < kEdges; ++e) below[e] += counts[e];
}

// The binades of 4 vectors of magnitudes less `phase`, as signed bytes in any order. Less 127, so
// that every finite magnitude fits.
HWY_INLINE auto BinadesOf4(const VectorLanes::V* magnitudes, VectorLanes::V offset) {
  constexpr auto kI32 = VectorLanes::kI32;
  const hn::Repartition<int16_t, U32Tag> i16;
  const auto binade = [&](size_t v) HWY_ATTR {
    return hn::ShiftRight<23>(hn::BitCast(kI32, hn::Sub(magnitudes[v], offset)));
  };
  const auto low = hn::ReorderDemote2To(i16, binade(0), binade(1));
  const auto high = hn::ReorderDemote2To(i16, binade(2), binade(3));
  const auto bytes = hn::Or(hn::And(low, hn::Set(i16, 0xFF)), hn::ShiftLeft<8>(high));
  return hn::BitCast(hn::Repartition<int8_t, U32Tag>(), bytes);
}

// Counts at kEdges edges `phase` + 2^23 * (binades[e] + 127): one comparison serves four vectors.
template <size_t kEdges>
void CountPhaseGroup(const float* HWY_RESTRICT values, size_t count, uint32_t phase,
                     const int8_t* binades, uint64_t* below) {
  constexpr size_t kVectors = 4;
  const hn::Repartition<int8_t, U32Tag> i8;
  constexpr VectorLanes kLanes;
  const size_t lanes = VectorLanes::Count();
  const auto offset = kLanes.Set(phase + (127u << 23));
  size_t counts[kEdges] = {};
  for (size_t i = 0; i < count; i += kVectors * lanes) {
    VectorLanes::V magnitudes[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      // With 16 lanes a lone row has two vectors; nothing is above the largest finite magnitude.
      const bool beyond = v >= 2 && lanes == 16 && i + kSumLanes >= count;
      magnitudes[v] =
          beyond ? kLanes.Set(codec::kInfinityBits - 1) : LoadMagnitudes(values + i + v * lanes);
    }
    const auto bytes = BinadesOf4(magnitudes, offset);
    for (size_t e = 0; e < kEdges; ++e) {
      counts[e] += hn::CountTrue(i8, hn::Lt(bytes, hn::Set(i8, binades[e])));
    }
  }
  for (size_t e = 0; e < kEdges; ++e) below[e] += counts[e];
}

// Sums squares at kEdges edges, column by column with the sums in registers.
template <size_t kEdges>
void SumGroup(const float* HWY_RESTRICT values, size_t count, const uint32_t* edges,
              double* results) {
  using S = SumVectors;
  alignas(64) std::array<SumLanes, kEdges> sum_lanes;
  // Columns taken together hide latencies as far as their sums fit the registers.
  constexpr size_t kColumns = kEdges <= kMostSums / 2 ? 2 : 1;
  for (size_t lane = 0; lane < kSumLanes; lane += kColumns * S::kLanes) {
    S::Sum sums[kEdges][kColumns];
    for (auto& of_edge : sums) {
      for (S::Sum& sum : of_edge) sum = S::NoSum();
    }
    for (size_t i = lane; i < count; i += kSumLanes) {
      for (size_t c = 0; c < kColumns; ++c) {
        const S::V magnitude = S::LoadMagnitudes(values + i + c * S::kLanes);
        const S::Sum wide = S::Widen(magnitude);
        const S::Sum square = hn::Mul(wide, wide);
        for (size_t e = 0; e < kEdges; ++e) {
          const S::M below = S::Lt(magnitude, S::Set(edges[e]));
          // Processors add and multiply-add in different units: both are kept busy.
          sums[e][c] = e % 2 == 0 ? S::AddSquareWhere(below, wide, sums[e][c])
                                  : S::AddWhere(below, square, sums[e][c]);
        }
      }
    }
    for (size_t e = 0; e < kEdges; ++e) {
      for (size_t c = 0; c < kColumns; ++c) {
        hn::StoreU(sums[e][c], S::kF64, &sum_lanes[e][lane + c * S::kLanes]);
      }
    }
  }
  for (size_t e = 0; e < kEdges; ++e) results[e] = AddLanes(sum_lanes[e]);
}

// Sums squares at edges with few values below: only what is below the last, largest edge is looked
// at, element by element.
inline void SumBelowRareEdges(const float* HWY_RESTRICT values, size_t count, const uint32_t* edges,
                              size_t edge_count, double* results) {
  constexpr VectorLanes kLanes;
  std::array<SumLanes, kRareEdges> sum_lanes;
  std::fill_n(sum_lanes.begin(), edge_count, SumLanes{});
  const size_t lanes = VectorLanes::Count();
  const auto one = kLanes.Set(1), largest = kLanes.Set(edges[edge_count - 1] - 1);
  for (size_t i = 0; i < count; i += lanes) {
    // Zeros are the most common values below any edge; less one they are above all.
    const auto less_one = kLanes.Sub(LoadMagnitudes(values + i), one);
    const auto below = kLanes.LtUnsigned(less_one, largest);
    if (HWY_LIKELY(kLanes.AllFalse(below))) continue;
    uint8_t bytes[8] = {};
    hn::StoreMaskBits(VectorLanes::kU32, below, bytes);
    for (uint32_t bits = bytes[0] | uint32_t{bytes[1]} << 8; bits != 0; bits &= bits - 1) {
      const size_t at = i + static_cast<size_t>(std::countr_zero(bits));
      const uint32_t magnitude = MagnitudeBits(values[at]);
      for (size_t e = edge_count; e > 0 && magnitude < edges[e - 1]; --e) {
        AddSquare(values[at], at, sum_lanes[e - 1]);
      }
    }
  }
  for (size_t e = 0; e < edge_count; ++e) results[e] = AddLanes(sum_lanes[e]);
}

// Calls body(first edge, number of edges as a constant) for groups of at most kMax edges.
template <size_t kMax, class Body>
HWY_INLINE void ForEdgeGroups(size_t edge_count, const Body& body) {
  size_t first = 0;
  for (; first + kMax <= edge_count; first += kMax) {
    body(first, std::integral_constant<size_t, kMax>());
  }
  const auto rest = [&]<size_t... kSizes>(std::index_sequence<kSizes...>) {
    ((edge_count - first == kSizes + 1 ? body(first, std::integral_constant<size_t, kSizes + 1>())
                                       : void()),
     ...);
  };
  if (first < edge_count) rest(std::make_index_sequence<kMax - 1>());
}

inline void CountBelowInRows(const float* values, size_t count, const uint32_t* edges,
                             size_t edge_count, uint64_t* below) {
  ForEdgeGroups<8>(edge_count, [&](size_t first, auto edges_of_group) {
    CountGroup<decltype(edges_of_group)::value>(values, count, edges + first, below + first);
  });
}

inline void CountBinadesInRows(const float* values, size_t count, uint32_t phase,
                               const int8_t* binades, size_t edge_count, uint64_t* below) {
  ForEdgeGroups<8>(edge_count, [&](size_t first, auto edges_of_group) {
    CountPhaseGroup<decltype(edges_of_group)::value>(values, count, phase, binades + first,
                                                     below + first);
  });
}

inline void SumBelowInRows(const float* values, size_t count, const uint32_t* edges,
                           size_t edge_count, double* sums) {
  ForEdgeGroups<kMostSums>(edge_count, [&](size_t first, auto edges_of_group) {
    SumGroup<decltype(edges_of_group)::value>(values, count, edges + first, sums + first);
  });
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
