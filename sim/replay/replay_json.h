// SPDX-License-Identifier: Apache-2.0
// The result of a replay as JSON, schema "dlsim.replay/1" (docs/results.md).
#pragma once

#include <span>
#include <string>

#include "sim/base/json_value.h"
#include "sim/base/output_file.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {

// Writes the document step by step, one line each, without building it in memory. `options` are
// those of the call that shape every run.
void WriteReplayJson(const SourceFacts& facts, std::span<const std::string> paths,
                     const Json& options, const Json& verdict, std::span<const SimulationRun> runs,
                     OutputFile& out);

}  // namespace dlsim::sim
