// SPDX-License-Identifier: Apache-2.0
// The random bits of stochastic rounding, written independently from Salmon et al. (SC 2011) and
// docs/numerics.md, as an oracle for dlsim/philox.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "dlsim/codec.h"

namespace dlsim {

// Philox4x32-10 of one counter.
inline std::array<uint32_t, 4> OraclePhilox(std::array<uint32_t, 4> x, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * x[0], product1 = uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ key0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return x;
}

// Fills in the 32 random bits of the elements from `first`, a multiple of 8, on.
inline void FillRandomWords(const RandomStream& random, uint64_t first, std::span<uint32_t> words) {
  for (size_t begin = 0; begin < words.size(); begin += 8) {
    const uint64_t block = (first + begin) / 8;
    const uint32_t low = static_cast<uint32_t>(block), high = static_cast<uint32_t>(block >> 32);
    const auto plane0 = OraclePhilox({low, high, random.stream, 0}, random.seed);
    const auto plane1 = OraclePhilox({low, high, random.stream, 1}, random.seed);
    for (size_t i = 0; i < 8 && begin + i < words.size(); ++i) {
      const size_t shift = i % 2 * 16;
      const uint32_t top = (plane0[i / 2] >> shift) & 0xFFFF;
      words[begin + i] = (top << 16) | ((plane1[i / 2] >> shift) & 0xFFFF);
    }
  }
}

}  // namespace dlsim
