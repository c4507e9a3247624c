// SPDX-License-Identifier: Apache-2.0
// Up to which loss scale a gradient fits a format, and up to which gradient a loss scale does.
#pragma once

#include "dlsim/codec.h"

namespace dlsim::sim {

// What becomes of a magnitude, of either sign: directed rounding treats them differently.
struct ScaledMagnitude {
  // Becomes infinite, in float32 or in the format, or is clamped: by saturation, or by a rounding
  // mode that stops at the largest finite value, where that is more than rounding.
  bool overflows = false;
  bool nonfinite = false;  // is infinite or NaN in the format
};
ScaledMagnitude ScaleMagnitude(const Conversion& conversion, float magnitude, float scale);

// Returns the largest float32 scale at which no magnitude up to `magnitude` overflows, or becomes
// infinite or NaN in the format; 0 if none is known, since the smallest subnormal one does.
float LargestScale(const Conversion& conversion, float magnitude);
float LargestFiniteScale(const Conversion& conversion, float magnitude);

// Returns the largest float32 magnitude that does not overflow at this scale.
float LargestMagnitude(const Conversion& conversion, float scale);

}  // namespace dlsim::sim
