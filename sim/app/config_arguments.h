// SPDX-License-Identifier: Apache-2.0
// The options that name a training configuration, shared by the commands that take one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/app/option_rows.h"
#include "sim/base/json_value.h"
#include "sim/config/training_config.h"

namespace dlsim::sim {

enum class ConfigFiles : uint8_t { kOne, kSeveral };

struct ConfigArguments {
  std::vector<std::string> paths;
  ConfigOptions options;

  // --config, --config-kind, --config-version and --backend. The help says what is `taken` from a
  // file, and which options override it (`win`).
  void Visit(OptionRows& option, ConfigFiles files = ConfigFiles::kOne,
             const std::string& taken = "format, policy and parameters",
             const std::string& win = "--format, --policy and --set");
  std::string path() const { return paths.empty() ? "" : paths.front(); }
};

// Returns what the files mean, in their order. Throws Error for a bad file, for one that is given
// twice, and for options that have no effect without one.
std::vector<TrainingConfig> ReadConfigs(const ConfigArguments& arguments);

// The same for a command that takes one file; throws Error for several.
std::optional<TrainingConfig> ReadConfig(const ConfigArguments& arguments);

// The same, with a note on clipping, for commands that do not clip.
std::optional<TrainingConfig> ReadConfigOfUnclippedRuns(const ConfigArguments& arguments);

// Returns the object "config" of a result.
Json JsonConfig(const std::string& path, const TrainingConfig& config);

}  // namespace dlsim::sim
