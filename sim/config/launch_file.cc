// SPDX-License-Identifier: Apache-2.0
#include "sim/config/launch_file.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "dlsim/error.h"
#include "sim/config/arguments.h"
#include "sim/config/config_file.h"
#include "sim/config/dialects.h"

namespace dlsim::sim {

std::optional<LaunchFile> ReadLaunchFile(const ConfigBlock& arguments, bool is_needed) {
  const ConfigNode* named = arguments.Find("config_file");
  if (named == nullptr || named->text.find(".toml") != std::string::npos) return std::nullopt;
  const std::filesystem::path next_to_file =
      std::filesystem::path(arguments.file()).parent_path() / named->text;
  std::error_code ignored;
  for (const std::filesystem::path& path : {next_to_file, std::filesystem::path(named->text)}) {
    if (!std::filesystem::is_regular_file(path, ignored)) continue;
    return LaunchFile{path.string(), ReadConfigFile(path.string())};
  }
  if (!is_needed) return std::nullopt;
  arguments.Refuse("config_file", "no such file of Accelerate, which may choose another scaler",
                   "its path from this file or from the working directory, or --policy torch "
                   "--format fp16",
                   Quoted(named->text));
}

void NoteUnreadLaunchFile(const ConfigBlock& arguments, const std::optional<LaunchFile>& launch,
                          std::vector<std::string>& notes) {
  const ConfigNode* named = arguments.Find("config_file");
  if (launch || named == nullptr || named->text.find(".toml") != std::string::npos) return;
  notes.push_back("Accelerate's file " + Printable(named->text) +
                  " is not there: if it asks for DeepSpeed, a step whose gradients are not finite "
                  "is skipped");
}

std::optional<TrainingConfig> ReadLaunched(LaunchFile file, const std::string& precision,
                                           const ConfigOptions& options) {
  const bool other = file.Block().Is("distributed_type", "DEEPSPEED") ||
                     file.Block().Is("distributed_type", "MEGATRON_LM");
  if (!other) return std::nullopt;
  auto& entries = file.root.entries;
  if (!precision.empty()) {  // the program's own choice wins
    std::erase_if(entries, [](const ConfigEntry& entry) { return entry.key == "mixed_precision"; });
    entries.push_back({"mixed_precision", ScalarNode(ConfigNode::Kind::kText, precision)});
  }
  const std::optional<ConfigBlock> plugin = file.Block().Table("deepspeed_config");
  if (plugin && plugin->Has("deepspeed_config_file")) {
    plugin->Refuse("deepspeed_config_file", "DeepSpeed's file decides", "--config with that file");
  }
  TrainingConfig config = ReadAccelerate(file.Block(), options);
  config.notes.insert(config.notes.begin(),
                      "Accelerate's file " + Printable(file.path) +
                          " decides; a trainer refuses arguments that differ from its values");
  return config;
}

}  // namespace dlsim::sim
