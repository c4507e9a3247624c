// SPDX-License-Identifier: Apache-2.0
// The results of a replay: JSON, schema "dlsim.replay/1", its figures, and CSV with one row per
// step, run, micro-step and tensor (docs/results.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/base/expectation.h"
#include "sim/base/rows.h"
#include "sim/base/shared_rows.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {

// The rows of a run's path; those of scales have no value if the policy refused its parameters.
// `stopped_at`: the step of the event that ended it.
void PathRows(const PathSummary& of, std::optional<int64_t> stopped_at, RowSink& row);

inline constexpr const char* kWorstEnergyLost = "largest energy_lost of one applied step";

// Returns the figures of the summary of a run.
std::vector<Figure> FiguresOf(const SimulationRun& run);

// What is written next to the runs.
struct ReplayRecord {
  TellRows trace, options, verdict;
  std::span<const ExpectationOutcome> expectations;
  std::span<const SimulationRun> runs;
};

// Writes the document step by step, one line each, without building it in memory.
void WriteReplayJson(const ReplayRecord& record, OutputFile& out);

// The first line, with its line end; with `configs`, the configuration of each run, the last column
// names it.
std::string CsvHeader(std::span<const std::string> configs = {});

// Writes the rows of one step.
void WriteCsvRows(const ObservedStep& step, std::span<const std::string> configs, OutputFile& out);

// Adds the tables of the keys and columns.
void AddReplayKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
