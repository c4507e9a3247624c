// SPDX-License-Identifier: Apache-2.0
// The bisection over magnitudes by which all thresholds are found.
#pragma once

#include <cstdint>

namespace dlsim {

// Returns the smallest magnitude from `begin` up to `end` at which a monotone predicate of float32
// magnitude bits holds, else `end`.
template <class Predicate>
uint32_t FirstMagnitude(uint32_t begin, uint32_t end, const Predicate& holds) {
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
