// SPDX-License-Identifier: Apache-2.0
// What dlsim updates writes: its report, JSON and CSV (docs/updates.md).
#pragma once

#include <cstdint>
#include <string>

#include "sim/base/json_value.h"
#include "sim/base/output_file.h"
#include "sim/updates/update_verdict.h"

namespace dlsim::sim {

// Returns the report: the verdict, what was looked at, a row for each run, and the `top` worst
// tensors of the first run that is harmed, else of the first.
std::string FormatUpdates(const UpdateStudy& study, uint64_t top);

// What a run came to, in numbers or null: the figures of --expect.
Json JsonFigures(const RunOutcome& run);

// Writes the document dlsim.updates/1. `options` describes the call; `expectations` may be null.
void WriteUpdatesJson(const UpdateStudy& study, const Json& options, const Json& expectations,
                      OutputFile& out);

// Writes a header and one row per run and tensor.
void WriteUpdatesCsv(const UpdateStudy& study, OutputFile& out);

// Writes a header and one row per run and followed element: where the replay left it.
void WriteElementsCsv(const ProbeHead& head, const UpdateReplay& replay, OutputFile& out);

}  // namespace dlsim::sim
