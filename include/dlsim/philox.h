// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, the counter-based random generator of Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011), and its use for stochastic rounding.
#pragma once

#include <cstdint>

#include "dlsim/host_device.h"

namespace dlsim {

// A counter that becomes a block of random bits.
struct PhiloxBlock {
  uint32_t word[4];
};

// The constants of the paper: the multipliers of words 0 and 2, the steps of the key's two words.
inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9, kPhiloxWeyl1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

// Returns the random block of a counter under a 64-bit key.
DLSIM_HOST_DEVICE constexpr PhiloxBlock Philox4x32(PhiloxBlock c, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{c.word[0]} * kPhiloxMultiplier0;
    const uint64_t product1 = uint64_t{c.word[2]} * kPhiloxMultiplier1;
    c = {{static_cast<uint32_t>(product1 >> 32) ^ c.word[1] ^ key0, static_cast<uint32_t>(product1),
          static_cast<uint32_t>(product0 >> 32) ^ c.word[3] ^ key1,
          static_cast<uint32_t>(product0)}};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return c;
}

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
    const PhiloxBlock counter = {
        {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), random.stream, plane}};
    const uint32_t word = Philox4x32(counter, random.seed).word[half / 2];
    bits = (bits << 16) | ((word >> (16 * (half % 2))) & 0xFFFF);
  }
  return bits;
}

}  // namespace dlsim
