// SPDX-License-Identifier: Apache-2.0
#include "src/scaled/group_scale.h"

#include <bit>
#include <cmath>
#include <cstddef>

namespace dlsim {

float ScaleFor(const ScaledFormat& format, const Format& element, float largest) {
  return GroupScales(format, element).Float32Of(largest);
}

GroupScales::GroupScales(const ScaledFormat& format, const Format& element, float largest)
    : type_(format.scale),
      rule_(format.rule),
      power_of_two_(format.power_of_two),
      least_(format.least),
      margin_(group_scale::PowerOfTwo(format.margin)),
      max_(static_cast<float>(MaxFinite(element))),
      max_of_both_(static_cast<float>(MaxFinite(kE4m3)) * max_),
      highest_exponent_(std::ilogb(max_)),
      half_of_last_bit_(uint32_t{1} << (22 - element.mantissa_bits)),
      of_scales_(MakeCodecSpec({kE4m3, Rounding::kNearestEven, Overflow::kSaturate})) {
  const bool from_ratio = rule_ == ScaleRule::kUp || rule_ == ScaleRule::kNearest;
  // The originals do not multiply by 2^127.
  encode_of_zero_ = from_ratio ? 1.0f : group_scale::PowerOfTwo(group_scale::kE8m0Bias - 1);
  if (type_ == ScaleType::kFp8) SetTensorScale(largest);
}

void GroupScales::OfEach(std::span<const uint32_t> largest, std::span<GroupScale> scales) const {
  for (size_t i = 0; i < largest.size(); ++i) scales[i] = Of(std::bit_cast<float>(largest[i]));
}

void GroupScales::OfCodes(std::span<const uint32_t> codes, std::span<GroupScale> scales) const {
  for (size_t i = 0; i < codes.size(); ++i) scales[i] = OfCode(codes[i]);
}

}  // namespace dlsim
