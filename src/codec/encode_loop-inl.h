// SPDX-License-Identifier: Apache-2.0
// The loop that every encoding kernel shares: scale, encode, hand over; per SIMD target.
#if defined(DLSIM_ENCODE_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_ENCODE_LOOP_INL_H_
#undef DLSIM_ENCODE_LOOP_INL_H_
#else
#define DLSIM_ENCODE_LOOP_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/cache_control.h"
#include "src/codec/codec-inl.h"
#include "src/codec/random-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

// Calls `body` with the rounding mode as a compile-time constant.
template <class Body>
HWY_INLINE void DispatchRounding(Rounding rounding, const Body& body) {
  const auto with = [&]<Rounding kMode>() { body(std::integral_constant<Rounding, kMode>()); };
  switch (rounding) {
    case Rounding::kNearestEven:
      return with.template operator()<Rounding::kNearestEven>();
    case Rounding::kTowardZero:
      return with.template operator()<Rounding::kTowardZero>();
    case Rounding::kNearestAway:
      return with.template operator()<Rounding::kNearestAway>();
    case Rounding::kTowardPositive:
      return with.template operator()<Rounding::kTowardPositive>();
    case Rounding::kTowardNegative:
      return with.template operator()<Rounding::kTowardNegative>();
    case Rounding::kStochastic:
      return with.template operator()<Rounding::kStochastic>();
  }
}

// Elements to fetch ahead: 2 KiB, past which nothing is gained in DRAM.
inline constexpr size_t kPrefetchDistance = 512;

// Returns whether some element of the run needs more than the 16 random bits of plane 0: all do if
// a normal result drops more, otherwise only those with a subnormal result.
HWY_INLINE bool NeedsSecondPlane(const CodecSpec& spec, float scale,
                                 const float* HWY_RESTRICT values, size_t count) {
  if (spec.dropped_bits > 16) return true;
  const auto subnormal = [&](float value) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(value * scale) & ~codec::kSignBit;
    return magnitude != 0 && magnitude < spec.min_normal_bits;
  };
  return std::any_of(values, values + count, subnormal);
}

// Scales `count` values, to be encoded. Whole vectors go to
//   whole(i, bits of the values, bits of the scaled values, random bits)
// and the rest, or everything for formats without subnormals, one by one through the scalar
// reference to single(i, bits, scaled bits, EncodeResult). `first_index` is the index of values[0]
// in the random stream, a multiple of 8.
template <Rounding kRounding, class Whole, class Single>
HWY_INLINE void EncodeLoop(const CodecSpec& spec, float scale, const RandomStream& random,
                           uint64_t first_index, const float* HWY_RESTRICT values, size_t count,
                           const Whole& whole, const Single& single) {
  constexpr VectorLanes kLanes;
  constexpr bool kNeedsRandom = kRounding == Rounding::kStochastic;
  const size_t lanes = VectorLanes::Count();
  const size_t vector_end = spec.gradual ? count - count % lanes : 0;
  RandomRun run;
  for (size_t begin = 0; begin < vector_end; begin += kRandomRun) {
    const size_t length = HWY_MIN(kRandomRun, vector_end - begin);
    if constexpr (kNeedsRandom) {
      FillPlane(random, first_index + begin, 0, run.high);
      if (NeedsSecondPlane(spec, scale, values + begin, length)) {
        FillPlane(random, first_index + begin, 1, run.low);
      } else {
        std::fill_n(run.low, kRandomRun, uint16_t{0});
      }
    }
    for (size_t i = 0; i < length; i += lanes) {
      // Hardware prefetchers lose track between chunks, and virtual machines may lack them.
      hwy::Prefetch(values + begin + i + kPrefetchDistance);
      const auto bits = kLanes.LoadFloats(values + begin + i);
      const auto scaled = kLanes.MulFloat(bits, scale);
      auto random_bits = scaled;
      if constexpr (kNeedsRandom) random_bits = LoadRandom(run, i);
      whole(begin + i, bits, scaled, random_bits);
    }
  }
  for (size_t i = vector_end; i < count; ++i) {
    const uint32_t scaled = std::bit_cast<uint32_t>(values[i] * scale);
    const uint32_t random_bits = kNeedsRandom ? RandomBits(random, first_index + i) : 0;
    single(i, std::bit_cast<uint32_t>(values[i]), scaled,
           EncodeWith<kRounding>(spec, scaled, random_bits));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
