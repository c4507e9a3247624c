// SPDX-License-Identifier: Apache-2.0
// The runs of a replay: those of the command line, or of each training configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/sim/forward.h"
#include "sim/app/training_config.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {

// A configuration that was read, for the record.
struct ConfigRecord {
  TrainingConfig config;
  std::string name;   // of several files: what the runs have
  Clipping clipping;  // of several files
};

void Rows(const ConfigRecord& of, RowSink& row);

struct ConfiguredRuns {
  std::vector<SimulationRun> runs;
  std::vector<std::string> formats;         // of all runs, each once
  std::vector<std::string> scaled;          // of the files, where no format was asked for
  std::optional<int64_t> accumulate_steps;  // as the files say
  std::optional<Recipe> recipe;             // of all files; nothing without one
  std::vector<ConfigRecord> configs;
  std::string text;  // for the report: what was read
};

// Completes the request by each file, and by the defaults, and makes its runs; of several files
// they carry the file's name. With one file, `request` has what it says afterwards. Throws Error
// (exit code 2) for what PrepareRuns refuses, and for files that accumulate differently.
ConfiguredRuns PrepareConfiguredRuns(const ConfigArguments& arguments, SimulationRequest& request);

// Returns the names of the configurations of the runs that take part, empty where none is named.
std::vector<std::string> ConfigsOfRuns(const std::vector<SimulationRun>& runs);

}  // namespace dlsim::sim
