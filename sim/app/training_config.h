// SPDX-License-Identifier: Apache-2.0
// What a training configuration means for a simulation. The Python package reads the files and
// passes on what they mean as JSON (--configured); this program alone refuses --config.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/sim/advice.h"
#include "dlsim/sim/loss_scaler.h"
#include "dlsim/sim/replay.h"
#include "sim/app/option_rows.h"
#include "sim/base/rows.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {

// A policy with the settings KEY=VALUE that the file gives it.
struct ConfigPolicy {
  std::string name;
  std::vector<std::string> settings;
};

// Returns policy static at 1.
inline ConfigPolicy NoScaler() { return {"static", {"loss_scale=1"}}; }

struct TrainingConfig {
  std::string path, kind;              // kind: for the report, such as "DeepSpeed"
  std::vector<std::string> formats;    // empty: the file does not say
  std::vector<ConfigPolicy> policies;  // empty: the file does not say
  std::string scaled;                  // a format with scales of its own, of products in layers
  Clipping clipping;
  std::optional<int64_t> accumulate_steps;  // recorded steps that make one
  std::optional<FiniteTest> finite_test;
  std::vector<std::pair<std::string, std::string>> updates;  // formats by what is in them
  std::vector<std::string> notes;  // one line each: what the file does not say or surprises
};

enum class ConfigFiles : uint8_t { kOne, kSeveral };

// The options that name training configurations, shared by the commands that take them.
struct ConfigArguments {
  std::vector<std::string> paths;
  std::string kind, version, backend;     // for Python, which reads the files
  std::optional<std::string> configured;  // what they mean: a JSON list, in the order of `paths`

  void Visit(OptionRows& option, ConfigFiles files = ConfigFiles::kOne);
  std::string path() const { return paths.empty() ? "" : paths.front(); }
};

// Throws UsageError that says where the option is: it is for what Python reads.
void RequirePython(const std::string& option, const std::string& instead);

// Returns what the files mean, in their order. Throws Error for an unknown policy, format or
// parameter in one, and where Python has not read them.
std::vector<TrainingConfig> ReadConfigs(const ConfigArguments& arguments);

// The same for a command that takes one file; throws Error for several.
std::optional<TrainingConfig> ReadConfig(const ConfigArguments& arguments);

// The same, with a note on clipping, for commands that do not clip.
std::optional<TrainingConfig> ReadConfigOfUnclippedRuns(const ConfigArguments& arguments);

// Returns the settings of a policy but for those that the command line replaces.
std::vector<std::string> SettingsOf(const ConfigPolicy& policy,
                                    std::span<const std::string> command_line);

// Completes a request by what the configuration says; what the request has already wins.
void ApplyConfig(const TrainingConfig& config, SimulationRequest& request);

// How the stack computes its forward pass in 16 bits.
Recipe RecipeOf(const TrainingConfig& config);

// Returns the lines of the report that say what was read.
std::string DescribeConfig(const TrainingConfig& config);

// The object "config" of a result.
void Rows(const TrainingConfig& of, RowSink& row);

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
