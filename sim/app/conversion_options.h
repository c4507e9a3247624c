// SPDX-License-Identifier: Apache-2.0
// The options that say how to convert, shared by the commands that do.
#pragma once

#include <cstdint>
#include <string>

#include "dlsim/codec.h"
#include "sim/app/option_rows.h"

namespace dlsim::sim {

struct ConversionOptions {
  Rounding rounding = Rounding::kNearestEven;
  Overflow overflow = Overflow::kInfinity;
  Subnormals subnormals = Subnormals::kKeep;
  uint64_t seed = 0;

  // --rounding, --overflow, --subnormals and --seed.
  void Visit(OptionRows& option);
  Conversion Of(const Format& format) const { return {format, rounding, overflow, subnormals}; }
};

// Returns the value of --scale; throws UsageError unless it is a positive float32 number.
float ParseScale(const std::string& text);

}  // namespace dlsim::sim
