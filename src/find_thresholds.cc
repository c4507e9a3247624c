// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>

#include "check.h"
#include "dlsim/thresholds.h"
#include "float_environment.h"

namespace dlsim {

Thresholds FindThresholds(const Conversion& conversion, float scale, Sign sign) {
  DLSIM_CHECK(conversion.rounding != Rounding::kStochastic && !std::isnan(scale));
  const DefaultFloatEnvironment environment;
  const CodecSpec spec = MakeCodecSpec(conversion);
  const uint32_t sign_bit = sign == Sign::kNegative ? codec::kSignBit : 0;
  // The smallest nonzero magnitude at which `holds`, which is monotone.
  const auto first_where = [&](auto holds) {
    uint32_t begin = 1, end = codec::kInfinityBits;
    while (begin < end) {
      const uint32_t middle = begin + (end - begin) / 2;
      const float scaled = std::bit_cast<float>(middle | sign_bit) * scale;
      const EncodeResult result =
          Encode(spec, conversion.rounding, std::bit_cast<uint32_t>(scaled));
      if (holds(Classify(spec, result.code), result.overflows || std::isinf(scaled))) {
        end = middle;
      } else {
        begin = middle + 1;
      }
    }
    return begin;
  };
  Thresholds thresholds;
  thresholds.nonzero = first_where([](CodeClass kind, bool) { return kind != CodeClass::kZero; });
  thresholds.normal = first_where([](CodeClass kind, bool) {
    return kind != CodeClass::kZero && kind != CodeClass::kSubnormal;
  });
  thresholds.overflow = first_where([](CodeClass, bool overflows) { return overflows; });
  return thresholds;
}

}  // namespace dlsim
