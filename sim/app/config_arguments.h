// SPDX-License-Identifier: Apache-2.0
// The options that name a training configuration, shared by the commands that take one.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "sim/base/json_value.h"
#include "sim/config/training_config.h"

namespace dlsim::sim {

struct ConfigArguments {
  std::string path;  // empty: none
  ConfigOptions options;
};

// Adds --config, --config-kind, --config-version and --backend.
void AddConfigArguments(CLI::App& command, ConfigArguments& arguments);

// Returns what the file means, if one is named. Throws Error for a bad file, and for options that
// have no effect without one.
std::optional<TrainingConfig> ReadConfig(const ConfigArguments& arguments);

// The same, with a note on clipping, for commands that do not clip.
std::optional<TrainingConfig> ReadConfigOfUnclippedRuns(const ConfigArguments& arguments);

// Returns the object "config" of a result.
Json JsonConfig(const std::string& path, const TrainingConfig& config);

}  // namespace dlsim::sim
