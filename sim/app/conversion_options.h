// SPDX-License-Identifier: Apache-2.0
// The options that say how to convert, shared by the commands that do.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "dlsim/codec.h"

namespace dlsim::sim {

struct ConversionOptions {
  Rounding rounding = Rounding::kNearestEven;
  Overflow overflow = Overflow::kInfinity;
  Subnormals subnormals = Subnormals::kKeep;
  uint64_t seed = 0;

  Conversion Of(const Format& format) const { return {format, rounding, overflow, subnormals}; }
};

// Adds --rounding, --overflow, --subnormals and --seed.
void AddConversionOptions(CLI::App& command, ConversionOptions& options);

// Returns the value of --scale; throws UsageError unless it is a positive float32 number.
float ParseScale(const std::string& text);

}  // namespace dlsim::sim
