// SPDX-License-Identifier: Apache-2.0
// The bisection over magnitudes by which all thresholds are found.
#pragma once

#include <cstdint>

#include "dlsim/codec.h"

namespace dlsim {

// Returns the smallest nonzero finite magnitude at which a monotone predicate of float32 magnitude
// bits holds, else that of infinity.
template <class Predicate>
uint32_t FirstMagnitude(const Predicate& holds) {
  uint32_t begin = 1, end = codec::kInfinityBits;
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    if (holds(middle)) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

}  // namespace dlsim
