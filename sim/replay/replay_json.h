// SPDX-License-Identifier: Apache-2.0
// The result of a replay as JSON, schema "dlsim.replay/1" (docs/results.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "sim/base/json_value.h"
#include "sim/base/output_file.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {

// Adds the path of a run in short; `stopped_at` is the step of the event that ended it.
void AddPath(const PathSummary& path, const std::optional<int64_t>& stopped_at, Json& object);

// The object "summary" of a run; of one that has not begun, every key that it will have but for
// ranges.
Json JsonSummary(const SimulationRun& run);

// Writes the document step by step, one line each, without building it in memory. `options` are
// those of the call that shape every run, `expectations` what came of those that were given: null
// if none were.
void WriteReplayJson(const SourceFacts& facts, std::span<const std::string> paths,
                     const Json& options, const Json& verdict, const Json& expectations,
                     std::span<const SimulationRun> runs, OutputFile& out);

}  // namespace dlsim::sim
