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
    if constexpr (row.kIsMember && row.kRow.merging == Merging::kOrderedSum) {
      EXPECT_PRED2(SameDigits, a.*row.kRow.of, b.*row.kRow.of);
    } else if constexpr (row.kIsMember) {
      EXPECT_EQ(a.*row.kRow.of, b.*row.kRow.of);
    }
  });
}

// But for what is left open where only errors are asked for.
inline void ExpectSameErrors(TensorStats a, TensorStats b) {
  for (TensorStats* const stats : {&a, &b}) {
    stats->underflow = stats->subnormal = 0;
    stats->underflow_sum_of_squares = 0;
    if (std::isfinite(stats->quantized_sum_of_squares)) stats->quantized_sum_of_squares = 0;
  }
  ExpectSame(a, b);
}

// But for what a histogram only estimates; its sums have an order of their own.
inline void ExpectSameInHistogram(const TensorStats& answer, const TensorStats& measured) {
  TensorStats rest = answer;
  rest.error_sum_of_squares = measured.error_sum_of_squares;
  rest.quantized_sum_of_squares = measured.quantized_sum_of_squares;
  ForEachCounter([&](auto row) {
    if constexpr (row.kIsMember && row.kRow.merging == Merging::kOrderedSum) {
      const double got = rest.*row.kRow.of, expected = measured.*row.kRow.of;
      if (std::fabs(got - expected) <= 1e-12 * std::fabs(expected)) rest.*row.kRow.of = expected;
    }
  });
  ExpectSame(rest, measured);
}

}  // namespace dlsim
