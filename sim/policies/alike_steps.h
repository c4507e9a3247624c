// SPDX-License-Identifier: Apache-2.0
// How many clean steps are alike, for the policies' AlikeSteps (see LossScalePolicy). A number that
// is too small costs time only.
#pragma once

#include <cmath>
#include <cstdint>

namespace dlsim::sim {

// For a scale that never changes.
inline constexpr int64_t kAlwaysAlike = int64_t{1} << 60;

// Those before the step that finds a counter of clean steps at an interval, or makes it reach it.
constexpr int64_t AlikeUntil(int64_t interval, int64_t counter) {
  return counter >= 0 && counter < interval ? interval - counter - 1 : 0;
}

// Those before the step that finds a counter of steps at a multiple of an interval.
constexpr int64_t AlikeUntilMultiple(int64_t interval, int64_t counter) {
  if (interval <= 0 || counter < 0 || counter % interval == 0) return 0;
  return interval - counter % interval;
}

// An interval that is a float: 0, for which no steps are alike, if it is no number of steps.
inline int64_t WholeInterval(double interval) {
  const bool is_whole = interval >= 1 && interval <= 0x1p53 && interval == std::floor(interval);
  return is_whole ? static_cast<int64_t>(interval) : 0;
}

}  // namespace dlsim::sim
