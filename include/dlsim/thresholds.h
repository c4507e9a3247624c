// SPDX-License-Identifier: Apache-2.0
// Where the outcome of a conversion changes. Rounding is monotone, so that what a conversion does
// to a value depends only on which thresholds the value's magnitude has reached.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "dlsim/codec.h"

namespace dlsim {

enum class Sign : uint8_t { kPositive, kNegative };

inline constexpr std::array<Sign, 2> kSigns = {Sign::kPositive, Sign::kNegative};

// The value of float32 magnitude bits.
inline float ValueOf(uint32_t magnitude, Sign sign) {
  return std::bit_cast<float>(magnitude | (sign == Sign::kNegative ? codec::kSignBit : 0));
}

// Float32 magnitude bits at which the result of a scaled conversion changes its kind, for values of
// one sign; kInfinityBits = at no finite magnitude.
struct Thresholds {
  uint32_t nonzero = 1;                      // from here on the result is not zero
  uint32_t normal = 1;                       // from here on it is not subnormal either
  uint32_t overflow = codec::kInfinityBits;  // from here on it overflows (see TensorStats)

  friend bool operator==(const Thresholds&, const Thresholds&) = default;
};

// Finds the thresholds by bisection through Encode: right for every scale, also where scaling
// itself overflows or underflows. Not for stochastic rounding, nor for a NaN as scale.
Thresholds FindThresholds(const Conversion& conversion, float scale, Sign sign);

}  // namespace dlsim
