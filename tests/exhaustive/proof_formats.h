// SPDX-License-Identifier: Apache-2.0
// What the proofs go through: every row of the table and two user-written formats.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "dlsim/codec.h"
#include "tests/support/formats_under_test.h"

namespace dlsim {

inline std::vector<NamedFormat> ProofFormats() {
  std::vector<NamedFormat> formats;
  for (const FormatRow& row : kFormats) formats.push_back({std::string(row.name), row.format});
  for (const char* name : {"e4m5", "e8m3"}) formats.push_back(ParseFormat(name));
  return formats;
}

// The formats with kernels of their own.
inline bool IsTuned(const Format& f) { return f == kFp16 || f == kBf16 || f == kCb16; }

struct NamedRounding {
  const char* name;
  Rounding rounding;
};

// How GoogleTest shows a rounding mode.
inline void PrintTo(const NamedRounding& rounding, std::ostream* out) { *out << rounding.name; }

inline constexpr NamedRounding kRoundings[] = {
    {"rne", Rounding::kNearestEven},   {"rtz", Rounding::kTowardZero},
    {"rna", Rounding::kNearestAway},   {"ru", Rounding::kTowardPositive},
    {"rd", Rounding::kTowardNegative}, {"sr", Rounding::kStochastic}};

}  // namespace dlsim
