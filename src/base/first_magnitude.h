// SPDX-License-Identifier: Apache-2.0
// The bisection over magnitudes by which all thresholds are found.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dlsim/codec.h"

namespace dlsim {

// Returns the smallest magnitude from `begin` up to `end` at which a monotone predicate of float32
// magnitude bits holds, else `end`.
template <class Predicate>
uint32_t FirstMagnitudeWithin(uint32_t begin, uint32_t end, const Predicate& holds) {
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

// The same among all that are finite and not zero, else that of infinity.
template <class Predicate>
uint32_t FirstMagnitude(const Predicate& holds) {
  return FirstMagnitudeWithin(1, codec::kInfinityBits, holds);
}

// The same, looking at first around `guess`, in steps that double: a good guess takes two calls
// instead of 31.
template <class Predicate>
uint32_t FirstMagnitudeNear(uint32_t guess, const Predicate& holds) {
  uint32_t begin = 1, end = codec::kInfinityBits;  // what is sought lies between, or is `end`
  const uint32_t first = std::clamp(guess, begin, end);
  const bool is_below = first == end || holds(first);
  (is_below ? end : begin) = is_below ? first : first + 1;
  for (uint32_t step = 1; begin < end; step *= 2) {
    const uint32_t distance = std::min(step, end - begin);
    const uint32_t probe = is_below ? end - distance : begin + distance - 1;
    const bool held = holds(probe);
    (held ? end : begin) = held ? probe : probe + 1;
    if (held != is_below) break;
  }
  return FirstMagnitudeWithin(begin, end, holds);
}

}  // namespace dlsim
