// SPDX-License-Identifier: Apache-2.0
// Expects two answers about a step to be the same, field by field and bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

#include "dlsim/measure_step.h"

namespace dlsim {

inline void ExpectSameBits(double got, double expected) {
  EXPECT_EQ(std::bit_cast<uint64_t>(got), std::bit_cast<uint64_t>(expected))
      << got << " is not " << expected;
}
inline void ExpectSameBits(float got, float expected) {
  EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(expected))
      << got << " is not " << expected;
}

inline void ExpectSameBits(uint64_t got, uint64_t expected) { EXPECT_EQ(got, expected); }

inline void ExpectSameBits(const TensorStats& got, const TensorStats& expected) {
  ForEachCounter([&](auto row) {
    SCOPED_TRACE(row.kRow.name);
    if constexpr (row.kIsMember) ExpectSameBits(got.*row.kRow.of, expected.*row.kRow.of);
  });
}

// Every NaN is the same: which one an addition of two keeps depends on the compiler.
inline void ExpectSameSum(double got, double expected) {
  if (!std::isnan(got) || !std::isnan(expected)) ExpectSameBits(got, expected);
}

inline void ExpectSameBits(const GradientDetail& got, const GradientDetail& expected) {
  ExpectSameSum(got.scaled_sum, expected.scaled_sum);
  ExpectSameSum(got.scaled_sum_of_squares, expected.scaled_sum_of_squares);
  ExpectSameBits(got.absmax, expected.absmax);
  EXPECT_EQ(got.below_edge, expected.below_edge);
  EXPECT_EQ(got.above_edge, expected.above_edge);
  EXPECT_EQ(got.above_limit, expected.above_limit);
  EXPECT_EQ(got.elements, expected.elements);
}

inline void ExpectSameBits(const TensorAnswer& got, const TensorAnswer& expected) {
  ExpectSameBits(got.total, expected.total);
  ASSERT_EQ(got.rest().parts.size(), expected.rest().parts.size());
  for (size_t part = 0; part < got.rest().parts.size(); ++part) {
    SCOPED_TRACE("part " + std::to_string(part));
    ExpectSameBits(got.rest().parts[part], expected.rest().parts[part]);
  }
  ExpectSameBits(got.sum_of_squares, expected.sum_of_squares);
  ASSERT_EQ(got.rest().converted_squares.has_value(),
            expected.rest().converted_squares.has_value());
  if (got.rest().converted_squares)
    ExpectSameSum(*got.rest().converted_squares, *expected.rest().converted_squares);
  EXPECT_EQ(got.scaled_sum_finite, expected.scaled_sum_finite);
  EXPECT_EQ(got.unscaled_finite, expected.unscaled_finite);
  ExpectSameBits(got.rest().detail, expected.rest().detail);
}

inline void ExpectSameBits(const StepAnswer& got, const StepAnswer& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t t = 0; t < got.size(); ++t) {
    SCOPED_TRACE("tensor " + std::to_string(t));
    ExpectSameBits(got[t], expected[t]);
  }
}

}  // namespace dlsim
