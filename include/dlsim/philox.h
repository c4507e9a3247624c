// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, the counter-based random generator of Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011), and its use for stochastic rounding.
#pragma once

#include <cstdint>

#include "dlsim/lanes.h"

namespace dlsim {

// Four 32-bit words per lane: a counter that becomes a block of random bits.
template <class V>
struct PhiloxBlock {
  V word[4];
};

// The constants of the paper: the multipliers of words 0 and 2, the steps of the key's two words.
inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9, kPhiloxWeyl1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

// The lane-generic text for one scalar lane.
namespace scalar {
#define DLSIM_LANE_FUNCTION DLSIM_HOST_DEVICE constexpr
#include "dlsim/philox.inc"
#undef DLSIM_LANE_FUNCTION
}  // namespace scalar

// Where the random bits of an array come from: the result depends on these and on the index of the
// element alone, never on threads, vector width or device.
struct RandomStream {
  uint64_t seed = 0;
  uint32_t stream = 0;  // 0 for conversions; a hash of tensor name and step in a replay
};

// One Philox block serves eight elements with 16 bits each. Plane 0 holds the high halves of their
// 32 random bits, plane 1 the low halves.
inline constexpr uint64_t kElementsPerPhiloxBlock = 8;

// Returns the 32 random bits of element `index`.
DLSIM_HOST_DEVICE constexpr uint32_t RandomBits(const RandomStream& random, uint64_t index) {
  const uint64_t block = index / kElementsPerPhiloxBlock;
  const uint64_t half = index % kElementsPerPhiloxBlock;
  uint32_t bits = 0;
  for (uint32_t plane = 0; plane < 2; ++plane) {
    const PhiloxBlock<uint32_t> counter = {
        {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), random.stream, plane}};
    const uint32_t word = scalar::Philox4x32(ScalarLanes(), counter, random.seed).word[half / 2];
    bits = (bits << 16) | ((word >> (16 * (half % 2))) & 0xFFFF);
  }
  return bits;
}

}  // namespace dlsim
