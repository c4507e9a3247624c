// SPDX-License-Identifier: Apache-2.0
// The float32 inputs at which a conversion can go wrong, built from the row of a format.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/support/double_oracle.h"

namespace dlsim {

// Float32 bit patterns, both signs: each code, each midpoint between neighbors, both +-1 ulp, and
// all kinds of zeros, subnormals, infinities and NaNs. Formats wider than 16 bits are sampled.
inline std::vector<uint32_t> BoundaryBits(const Format& f) {
  std::vector<uint32_t> bits = {0,          1,          2,          0x007FFFFF, 0x00800000,
                                0x00800001, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7F801FFF,
                                0x7F80FFFF, 0x7FBFFFFF, 0x7FC00000, 0x7FC00001, 0x7FFFFFFF};
  const auto add_around = [&](double value) {
    const float nearest = static_cast<float>(value);
    if (!std::isfinite(nearest)) return;
    const uint32_t center = std::bit_cast<uint32_t>(nearest);
    for (uint32_t offset = 0; offset < 5; ++offset) {
      if (center + offset >= 2) bits.push_back(center + offset - 2);
    }
  };
  const uint32_t stride = CodeBits(f) > 16 ? 37 : 1;
  for (uint32_t code = 0; code < OverflowCode(f); code += stride) {
    const double value = OracleDecode(f, code);
    const double next = code + 1 < OverflowCode(f) ? OracleDecode(f, code + 1)
                                                   : 2 * value - OracleDecode(f, code - 1);
    add_around(value);
    add_around((value + next) / 2);
  }
  add_around(OracleMax(f));
  add_around(2 * OracleMax(f));
  const size_t positive = bits.size();
  for (size_t i = 0; i < positive; ++i) bits.push_back(bits[i] | 0x80000000u);
  return bits;
}

// Values that scaled by 2^k are subnormal in float32, so that they are rounded twice, there and to
// the format: those near the places where both roundings meet, and others.
inline std::vector<float> TiesOfProducts(const Format& f, int k) {
  std::vector<float> values;
  const int last = 1 - f.bias - f.mantissa_bits;  // exponent of the smallest result
  for (int eighths = 0; eighths < 200; ++eighths) {
    const float at = std::ldexp(static_cast<float>(eighths), last - 3 - k);
    for (int ulps = -2; ulps <= 2; ++ulps) {
      const uint32_t bits = std::bit_cast<uint32_t>(at) + static_cast<uint32_t>(ulps);
      if (eighths > 0 || ulps >= 0) values.push_back(std::bit_cast<float>(bits));
    }
    for (const float bits_of_product : {0.499f, 0.5f, 0.501f, 1.5f}) {
      values.push_back(-at - std::ldexp(bits_of_product, -149 - k));
    }
  }
  return values;
}

// A dense sample of all 2^32 patterns: every exponent and sign, mantissas in `stride` steps.
inline std::vector<uint32_t> StratifiedBits(uint32_t stride) {
  std::vector<uint32_t> bits;
  uint32_t offset = 0;
  for (uint64_t at = 0; at < (uint64_t{1} << 32); at += stride) {
    offset = offset * 1664525u + 1013904223u;  // a different residue in each stratum
    bits.push_back(static_cast<uint32_t>(at) + offset % stride);
  }
  return bits;
}

inline std::vector<float> AsFloats(const std::vector<uint32_t>& bits) {
  std::vector<float> values;
  for (const uint32_t b : bits) values.push_back(std::bit_cast<float>(b));
  return values;
}

}  // namespace dlsim
