// SPDX-License-Identifier: Apache-2.0
// What one conversion did to one array: the counters of docs/numerics.md, section 4.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "dlsim/host_device.h"

namespace dlsim {

// Counts are exact. Sums are float64 in a fixed order (measure.h), so that every machine, thread
// count and device gives the same digits; they are merged in index order for the same reason.
struct TensorStats {
  uint64_t elements = 0;
  uint64_t zeros = 0;              // input is +0 or -0
  uint64_t nan = 0;                // input
  uint64_t inf = 0;                // input
  uint64_t underflow = 0;          // finite nonzero input, output +-0
  uint64_t subnormal = 0;          // finite nonzero input, output a nonzero subnormal
  uint64_t overflow = 0;           // finite input, output infinite (or clamped when saturating)
  uint64_t nonfinite_outputs = 0;  // output is infinity or NaN
  float absmax = 0;                // largest finite input magnitude
  double sum_of_squares = 0;       // of the finite inputs
  double underflow_sum_of_squares = 0;  // of the inputs that underflow
  double quantized_sum_of_squares = 0;  // of the outputs after unscaling; may be inf or NaN

  uint64_t nonfinite() const { return nan + inf; }
  uint64_t nonzero_finite() const { return elements - zeros - nonfinite(); }

  // Share of the nonzero finite inputs that became zero.
  double underflow_fraction() const {
    const uint64_t base = nonzero_finite();
    return base == 0 ? 0 : static_cast<double>(underflow) / static_cast<double>(base);
  }

  // Share of the inputs' sum of squares that became zero.
  double energy_lost() const {
    return sum_of_squares == 0 ? 0 : underflow_sum_of_squares / sum_of_squares;
  }

  // Adds the statistics of what follows in index order.
  DLSIM_HOST_DEVICE void Merge(const TensorStats& later) {
    elements += later.elements;
    zeros += later.zeros;
    nan += later.nan;
    inf += later.inf;
    underflow += later.underflow;
    subnormal += later.subnormal;
    overflow += later.overflow;
    nonfinite_outputs += later.nonfinite_outputs;
    absmax = later.absmax > absmax ? later.absmax : absmax;  // never NaN
    sum_of_squares += later.sum_of_squares;
    underflow_sum_of_squares += later.underflow_sum_of_squares;
    quantized_sum_of_squares += later.quantized_sum_of_squares;
  }
};

}  // namespace dlsim
