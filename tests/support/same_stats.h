// SPDX-License-Identifier: Apache-2.0
// Expects the counters of two measurements to be the same, digit for digit.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "dlsim/tensor_stats.h"

namespace dlsim {

// Every NaN is the same.
inline bool SameDigits(double x, double y) {
  return (std::isnan(x) && std::isnan(y)) ||
         std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y);
}

inline void ExpectSame(const TensorStats& a, const TensorStats& b) {
  ForEachCounter([&](auto row) {
    SCOPED_TRACE(row.kRow.name);
    if constexpr (std::is_same_v<decltype(row.kRow.of), double TensorStats::*>) {
      EXPECT_PRED2(SameDigits, a.*row.kRow.of, b.*row.kRow.of);
    } else if constexpr (row.kIsMember) {
      EXPECT_EQ(a.*row.kRow.of, b.*row.kRow.of);
    }
  });
}

}  // namespace dlsim
