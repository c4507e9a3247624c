// SPDX-License-Identifier: Apache-2.0
// Random bits for a run of elements, in bulk; re-included per SIMD target.
#if defined(DLSIM_RANDOM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_RANDOM_INL_H_
#undef DLSIM_RANDOM_INL_H_
#else
#define DLSIM_RANDOM_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "codec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim {
namespace HWY_NAMESPACE {

// Elements whose random bits are made at once: small enough for the first-level cache, a multiple
// of the elements that a vector of Philox blocks serves.
inline constexpr size_t kRandomRun = 512;

// The 16-bit halves of kRandomRun elements' random bits.
struct RandomRun {
  uint16_t high[kRandomRun];
  uint16_t low[kRandomRun];
};

// Fills one plane for the elements from `first` (a multiple of 8) on.
HWY_INLINE void FillPlane(const RandomStream& random, uint64_t first, uint32_t plane,
                          uint16_t* HWY_RESTRICT halves) {
  constexpr VectorLanes kLanes;
  using V = VectorLanes::V;
  constexpr size_t kMaxLanes = 16;
  uint32_t words[kRandomRun / 2];
  uint32_t low[kMaxLanes], high[kMaxLanes];
  const size_t lanes = VectorLanes::Count();
  const uint64_t first_block = first / kElementsPerPhiloxBlock;
  for (size_t i = 0; i < kRandomRun / kElementsPerPhiloxBlock; i += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      const uint64_t block = first_block + i + lane;
      low[lane] = static_cast<uint32_t>(block);
      high[lane] = static_cast<uint32_t>(block >> 32);
    }
    const PhiloxBlock<V> counter = {{kLanes.LoadCodes(low), kLanes.LoadCodes(high),
                                     kLanes.Set(random.stream), kLanes.Set(plane)}};
    const PhiloxBlock<V> block = lanewise::Philox4x32(kLanes, counter, random.seed);
    kLanes.StoreInterleaved4(block.word[0], block.word[1], block.word[2], block.word[3],
                             words + 4 * i);
  }
  // The low half of a word serves the earlier element.
  for (size_t i = 0; i < kRandomRun / 2; ++i) {
    halves[2 * i] = static_cast<uint16_t>(words[i]);
    halves[2 * i + 1] = static_cast<uint16_t>(words[i] >> 16);
  }
}

// Loads the 32 random bits of a vector of elements.
HWY_INLINE VectorLanes::V LoadRandom(const RandomRun& run, size_t offset) {
  constexpr VectorLanes kLanes;
  return kLanes.Or(kLanes.ShlBy(kLanes.LoadCodes(run.high + offset), 16),
                   kLanes.LoadCodes(run.low + offset));
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
