// SPDX-License-Identifier: Apache-2.0
// Sums in twice the precision of float64: the unevaluated sum of two doubles (Dekker 1971, Knuth).
#pragma once

namespace dlsim {

struct DoubleDouble {
  double high = 0, low = 0;

  void Add(double value) {
    const double sum = high + value;
    const double part = sum - high;
    low += (high - (sum - part)) + (value - part);
    high = sum;
  }
  void Add(const DoubleDouble& other) {
    Add(other.high);
    Add(other.low);
  }
  DoubleDouble Negated() const { return {-high, -low}; }
  double Value() const { return high + low; }
};

}  // namespace dlsim
