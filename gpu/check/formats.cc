// SPDX-License-Identifier: Apache-2.0
#include "gpu/check/formats.h"

namespace dlsim::gpu_check {

std::vector<NamedFormat> CheckedFormats() {
  std::vector<NamedFormat> formats;
  for (const FormatRow& row : kFormats) formats.push_back({std::string(row.name), row.format});
  for (const char* name : {"e2m1", "e5m7", "e7m8", "e8m15"}) formats.push_back(ParseFormat(name));
  return formats;
}

std::vector<Conversion> ConversionsTo(const Format& format) {
  std::vector<Conversion> conversions;
  for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
    for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
      for (const auto& row : EnumNames(Rounding{})) {
        conversions.push_back({format, row.value, overflow, subnormals});
      }
    }
  }
  return conversions;
}

std::string NameOf(const std::string& format, const Conversion& conversion) {
  std::string name = format + " ";
  name += dlsim::NameOf(conversion.rounding);
  if (conversion.overflow == Overflow::kSaturate) name += " saturate";
  if (conversion.subnormals == Subnormals::kFlushToZero) name += " flush";
  return name;
}

}  // namespace dlsim::gpu_check
