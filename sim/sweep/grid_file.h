// SPDX-License-Identifier: Apache-2.0
// A sweep's grid in a file (docs/sweep.md).
#pragma once

#include <string>

#include "sim/sweep/grid.h"

namespace dlsim::sim {

// Returns what a TOML file says. Throws Error: exit code 3 if it cannot be read, 2 for a bad one,
// naming the line.
SweepGrid ReadGridFile(const std::string& path);

}  // namespace dlsim::sim
