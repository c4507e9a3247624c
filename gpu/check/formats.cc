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
      for (const Rounding rounding :
           {Rounding::kNearestEven, Rounding::kTowardZero, Rounding::kNearestAway,
            Rounding::kTowardPositive, Rounding::kTowardNegative, Rounding::kStochastic}) {
        conversions.push_back({format, rounding, overflow, subnormals});
      }
    }
  }
  return conversions;
}

const char* RoundingName(Rounding rounding) {
  switch (rounding) {
    case Rounding::kNearestEven:
      return "rne";
    case Rounding::kTowardZero:
      return "rtz";
    case Rounding::kNearestAway:
      return "rna";
    case Rounding::kTowardPositive:
      return "ru";
    case Rounding::kTowardNegative:
      return "rd";
    case Rounding::kStochastic:
      return "sr";
  }
  return "?";
}

std::string NameOf(const std::string& format, const Conversion& conversion) {
  std::string name = format + " " + RoundingName(conversion.rounding);
  if (conversion.overflow == Overflow::kSaturate) name += " saturate";
  if (conversion.subnormals == Subnormals::kFlushToZero) name += " flush";
  return name;
}

}  // namespace dlsim::gpu_check
