// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/largest_scale.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace dlsim::sim {

namespace {

// Scaling and rounding are monotone, and so are the bits of positive float32 values.
template <typename Fails>
float LargestWithout(const Fails& fails) {
  uint32_t low = 0, high = std::bit_cast<uint32_t>(std::numeric_limits<float>::max());
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (fails(std::bit_cast<float>(middle))) {
      high = middle - 1;
    } else {
      low = middle;
    }
  }
  return std::bit_cast<float>(low);
}

}  // namespace

ScaledMagnitude ScaleMagnitude(const Conversion& conversion, float magnitude, float scale) {
  const CodecSpec spec = MakeCodecSpec(conversion);
  // The largest finite value and a unit of its last place: rounding goes no further than that.
  const double most = MaxFinite(conversion.format);
  const double beyond = most + std::ldexp(1.0, std::ilogb(most) - conversion.format.mantissa_bits);
  ScaledMagnitude scaled;
  for (const float value : {magnitude * scale, -magnitude * scale}) {
    const EncodeResult result =
        Encode(spec, conversion.rounding, std::bit_cast<uint32_t>(value), ~0u);
    const CodeClass output = Classify(spec, result.code);
    const bool nonfinite = output == CodeClass::kInfinity || output == CodeClass::kNan;
    scaled.nonfinite |= nonfinite;
    scaled.overflows |= nonfinite || result.overflows || !(std::fabs(value) < beyond);
  }
  return scaled;
}

float LargestScale(const Conversion& conversion, float magnitude) {
  return LargestWithout(
      [&](float scale) { return ScaleMagnitude(conversion, magnitude, scale).overflows; });
}

float LargestFiniteScale(const Conversion& conversion, float magnitude) {
  return LargestWithout(
      [&](float scale) { return ScaleMagnitude(conversion, magnitude, scale).nonfinite; });
}

float LargestMagnitude(const Conversion& conversion, float scale) {
  return LargestWithout(
      [&](float magnitude) { return ScaleMagnitude(conversion, magnitude, scale).overflows; });
}

}  // namespace dlsim::sim
