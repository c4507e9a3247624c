// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/largest_scale.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace dlsim::sim {

ScaledMagnitude ScaleMagnitude(const Conversion& conversion, float magnitude, float scale) {
  const CodecSpec spec = MakeCodecSpec(conversion);
  ScaledMagnitude scaled;
  for (const float value : {magnitude * scale, -magnitude * scale}) {
    const EncodeResult result =
        Encode(spec, conversion.rounding, std::bit_cast<uint32_t>(value), ~0u);
    const CodeClass output = Classify(spec, result.code);
    const bool nonfinite = output == CodeClass::kInfinity || output == CodeClass::kNan;
    scaled.nonfinite |= nonfinite;
    scaled.overflows |= nonfinite || result.overflows || !std::isfinite(value);
  }
  return scaled;
}

// Scaling and rounding are monotone, and so are the bits of positive float32 values.
float LargestScale(const Conversion& conversion, float magnitude) {
  uint32_t low = 0, high = std::bit_cast<uint32_t>(std::numeric_limits<float>::max());
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (ScaleMagnitude(conversion, magnitude, std::bit_cast<float>(middle)).overflows) {
      high = middle - 1;
    } else {
      low = middle;
    }
  }
  return std::bit_cast<float>(low);
}

}  // namespace dlsim::sim
