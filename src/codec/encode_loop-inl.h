// SPDX-License-Identifier: Apache-2.0
// The loop that all kernels share that encode by the definition, of which compilers make vectors of
// the SIMD target; re-included for each.
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

#include "dlsim/codec.h"
#include "hwy/cache_control.h"
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

// Calls encode(begin, end, random) for runs of `count` values that are scaled and encoded;
// random[i] are the random bits of values[begin + i] for kStochastic. `first_index` is the index of
// values[0] in the random stream, a multiple of 8.
template <Rounding kRounding, class Encode>
HWY_INLINE void ForEachRun(const CodecSpec& spec, float scale, const RandomStream& random,
                           uint64_t first_index, const float* HWY_RESTRICT values, size_t count,
                           const Encode& encode) {
  alignas(64) uint32_t words[kRandomRun];
  for (size_t begin = 0; begin < count; begin += kRandomRun) {
    const size_t end = HWY_MIN(begin + kRandomRun, count);
    if constexpr (kRounding == Rounding::kStochastic) {
      const RandomHalves high = PlaneOf(random, first_index + begin, 0);
      for (size_t i = 0; i < kRandomRun; ++i) words[i] = uint32_t{high.of[i]} << 16;
      const bool needs_low = std::any_of(values + begin, values + end, [&](float value) {
        return NeedsLowRandomBits(spec, std::bit_cast<uint32_t>(value * scale));
      });
      if (needs_low) {
        const RandomHalves low = PlaneOf(random, first_index + begin, 1);
        for (size_t i = 0; i < kRandomRun; ++i) words[i] |= low.of[i];
      }
    }
    // Hardware prefetchers lose track between chunks, and virtual machines may lack them.
    constexpr size_t kLine = 64 / sizeof(float);
    for (size_t i = begin; i < end; i += kLine) hwy::Prefetch(values + i + kPrefetchDistance);
    encode(begin, end, words);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
