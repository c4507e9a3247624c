// SPDX-License-Identifier: Apache-2.0
// The file of `accelerate launch --config_file FILE`, which may give a run another loss scaler.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/config/config_block.h"
#include "sim/config/training_config.h"

namespace dlsim::sim {

struct LaunchFile {
  std::string path;
  ConfigNode root;

  ConfigBlock Block() const { return ConfigBlock(path, root); }
};

// Reads the file that the arguments name, seen from theirs, else from the working directory;
// nothing if they name none or a TOML file, which is kohya's. Throws Error (exit code 2) if it is
// not there and `is_needed`.
std::optional<LaunchFile> ReadLaunchFile(const ConfigBlock& arguments, bool is_needed);

// Notes a file that the arguments name and that was not there.
void NoteUnreadLaunchFile(const ConfigBlock& arguments, const std::optional<LaunchFile>& launch,
                          std::vector<std::string>& notes);

// Returns DeepSpeed's configuration of a file that asks for it, for a run in `precision` ("fp16",
// "bf16", "no", or empty for that of the file); nothing if the file leaves the scaler to PyTorch.
std::optional<TrainingConfig> ReadLaunched(LaunchFile file, const std::string& precision,
                                           const ConfigOptions& options);

}  // namespace dlsim::sim
