// SPDX-License-Identifier: Apache-2.0
// Where the outcome of a conversion changes. Rounding is monotone, so that what a conversion does
// to a value depends only on which thresholds the value's magnitude has reached.
#pragma once

#include <cstdint>

#include "dlsim/codec.h"
#include "dlsim/histogram.h"

namespace dlsim {

// Float32 magnitude bits at which the result of a scaled conversion changes its kind, for values of
// one sign; kInfinityBits = at no finite magnitude.
struct Thresholds {
  uint32_t nonzero = 1;                      // from here on the result is not zero
  uint32_t normal = 1;                       // from here on it is not subnormal either
  uint32_t overflow = codec::kInfinityBits;  // from here on it overflows (see TensorStats)

  friend bool operator==(const Thresholds&, const Thresholds&) = default;
};

// Finds the thresholds by bisection through Encode: right for every scale, also where scaling
// itself overflows or underflows. Not for stochastic rounding, nor for a NaN as scale. They are the
// same whatever the guess, and found fastest where it is right.
Thresholds FindThresholds(const Conversion& conversion, float scale, Sign sign,
                          const Thresholds& guess = {});

}  // namespace dlsim
