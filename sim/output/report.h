// SPDX-License-Identifier: Apache-2.0
// The readable report of a replay for a terminal.
#pragma once

#include <span>
#include <string>

#include "sim/simulation.h"

namespace dlsim {

// Returns the report: what was read, one line per run, then per run the scale's path, the first
// overflow, the warm-up and the `top` worst tensors.
std::string FormatReport(const TraceReader& trace, std::span<const SimulationRun> runs, size_t top);

}  // namespace dlsim
