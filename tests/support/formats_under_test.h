// SPDX-License-Identifier: Apache-2.0
// Every row of the table and some user-written formats, so that a new row is tested by existing.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/error.h"
#include "dlsim/format.h"

namespace dlsim {

inline std::vector<NamedFormat> FormatsUnderTest() {
  std::vector<NamedFormat> formats;
  for (const FormatRow& row : kFormats) formats.push_back({std::string(row.name), row.format});
  for (const char* name : {"e2m1", "e3m2", "e4m3", "e7m8", "e8m1", "e5m14"}) {
    formats.push_back(ParseFormat(name));
  }
  return formats;
}

// What becomes of small and of large results.
inline std::vector<Conversion> ConversionsTo(const Format& format, Rounding rounding) {
  std::vector<Conversion> conversions;
  for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
    for (const Subnormals subnormals : {Subnormals::kKeep, Subnormals::kFlushToZero}) {
      conversions.push_back({format, rounding, overflow, subnormals});
    }
  }
  return conversions;
}

// How GoogleTest shows a format.
inline void PrintTo(const NamedFormat& format, std::ostream* out) { *out << format.name; }

// A name that GoogleTest accepts.
inline std::string TestName(const NamedFormat& format) {
  std::string name;
  for (const char c : format.name) {
    if (c != '-') name.push_back(c);
  }
  return name;
}

}  // namespace dlsim
