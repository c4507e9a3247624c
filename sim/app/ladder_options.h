// SPDX-License-Identifier: Apache-2.0
// The options that say what a profile is to answer exactly.
#pragma once

#include <CLI/CLI.hpp>

#include "sim/profile/ladder_settings.h"

namespace dlsim::sim {

// Adds --format, --rounding, --subnormals and --scales.
void AddLadderOptions(CLI::App& command, LadderSettings& settings);

}  // namespace dlsim::sim
