// SPDX-License-Identifier: Apache-2.0
// The options that say what a profile is to answer exactly.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/ladder.h"

namespace dlsim {

struct LadderOptions {
  std::vector<std::string> formats, roundings;
  std::optional<std::vector<Subnormals>> subnormals;
  std::optional<std::string> scales;
};

// Adds --format, --rounding, --subnormals and --scales.
void AddLadderOptions(CLI::App& command, LadderOptions& options);

// Returns the default ladder with what the options replace. Throws UsageError.
Ladder LadderOf(const LadderOptions& options);

// Returns the scales of a list such as "default,2^-3..2^20,1e4", ascending. Throws UsageError.
std::vector<float> ParseScales(const std::string& list);

}  // namespace dlsim
