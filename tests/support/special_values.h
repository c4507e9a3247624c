// SPDX-License-Identifier: Apache-2.0
// The special values of float32.
#pragma once

#include <limits>

namespace dlsim {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace dlsim
