// SPDX-License-Identifier: Apache-2.0
// FindThresholds for those who know about where the thresholds lie.
#pragma once

#include "dlsim/thresholds.h"

namespace dlsim {

// The same thresholds whatever the guess; they are found fastest where it is right.
Thresholds FindThresholdsNear(const Thresholds& guess, const Conversion& conversion, float scale,
                              Sign sign);

}  // namespace dlsim
