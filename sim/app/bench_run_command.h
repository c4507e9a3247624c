// SPDX-License-Identifier: Apache-2.0
// dlsim bench run.
#pragma once

#include <CLI/CLI.hpp>

#include "sim/app/commands.h"

namespace dlsim::sim {

// Adds it to the command bench.
void AddBenchRun(CLI::App& bench, Action& action);

}  // namespace dlsim::sim
