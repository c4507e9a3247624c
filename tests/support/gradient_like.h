// SPDX-License-Identifier: Apache-2.0
// Values as gradients have them.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace dlsim {

// Finite values over many binades, with zeros, and on demand infinities and NaNs.
inline std::vector<float> GradientLike(size_t count, bool with_nonfinite) {
  std::mt19937 random(20240607);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-36, 3);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = i % 17 == 0 ? 0.0f : std::ldexp(normal(random), exponent(random));
    if (with_nonfinite && i % 1001 == 500) values[i] = -std::numeric_limits<float>::infinity();
    if (with_nonfinite && i % 1003 == 501) values[i] = std::nanf("");
  }
  return values;
}

}  // namespace dlsim
