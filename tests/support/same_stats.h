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

// What is counted of the inputs, and the sum of errors.
inline void ExpectSameErrors(const TensorStats& a, const TensorStats& b) {
  EXPECT_EQ(a.elements, b.elements);
  EXPECT_EQ(a.zeros, b.zeros);
  EXPECT_EQ(a.nan, b.nan);
  EXPECT_EQ(a.inf, b.inf);
  EXPECT_EQ(a.absmax, b.absmax);
  EXPECT_PRED2(SameDigits, a.sum_of_squares, b.sum_of_squares);
  EXPECT_PRED2(SameDigits, a.error_sum_of_squares, b.error_sum_of_squares);
}

inline void ExpectSame(const TensorStats& a, const TensorStats& b) {
  ExpectSameErrors(a, b);
  EXPECT_EQ(a.underflow, b.underflow);
  EXPECT_EQ(a.subnormal, b.subnormal);
  EXPECT_EQ(a.overflow, b.overflow);
  EXPECT_EQ(a.nonfinite_outputs, b.nonfinite_outputs);
  EXPECT_PRED2(SameDigits, a.underflow_sum_of_squares, b.underflow_sum_of_squares);
  EXPECT_PRED2(SameDigits, a.quantized_sum_of_squares, b.quantized_sum_of_squares);
}

}  // namespace dlsim
