// SPDX-License-Identifier: Apache-2.0
#include "src/histogram/thresholds.h"

#include <bit>
#include <cmath>

#include "src/base/check.h"
#include "src/base/first_magnitude.h"
#include "src/base/float_environment.h"

namespace dlsim {

Thresholds FindThresholds(const Conversion& conversion, float scale, Sign sign,
                          const Thresholds& guess) {
  DLSIM_CHECK(conversion.rounding != Rounding::kStochastic && !std::isnan(scale));
  const DefaultFloatEnvironment environment;
  const CodecSpec spec = MakeCodecSpec(conversion);
  const auto first_where = [&](uint32_t Thresholds::*member, const auto& holds) {
    return FirstMagnitudeNear(guess.*member, [&](uint32_t magnitude) {
      const float scaled = ValueOf(magnitude, sign) * scale;
      const EncodeResult result =
          Encode(spec, conversion.rounding, std::bit_cast<uint32_t>(scaled));
      return holds(Classify(spec, result.code), result.overflows || std::isinf(scaled));
    });
  };
  Thresholds thresholds;
  thresholds.nonzero = first_where(&Thresholds::nonzero,
                                   [](CodeClass kind, bool) { return kind != CodeClass::kZero; });
  thresholds.normal = first_where(&Thresholds::normal, [](CodeClass kind, bool) {
    return kind != CodeClass::kZero && kind != CodeClass::kSubnormal;
  });
  thresholds.overflow =
      first_where(&Thresholds::overflow, [](CodeClass, bool overflows) { return overflows; });
  return thresholds;
}

}  // namespace dlsim
