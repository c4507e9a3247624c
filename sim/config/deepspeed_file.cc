// SPDX-License-Identifier: Apache-2.0
#include "sim/config/deepspeed_file.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "dlsim/error.h"
#include "sim/config/arguments.h"
#include "sim/config/config_file.h"
#include "sim/config/dialects.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

// Gives a key its value where it is "auto".
void FillAuto(ConfigNode& table, std::string_view key, const ConfigNode& value) {
  const auto found = std::ranges::find(table.entries, key, &ConfigEntry::key);
  if (found == table.entries.end() || found->value.text != "auto") return;
  const int line = found->value.line;
  found->value = value;
  found->value.line = line;
}

// Switches a type on or off where it is "auto"; Accelerate adds a block that is missing.
void FillSwitch(ConfigNode& root, std::string_view key, bool on) {
  const auto found = std::ranges::find(root.entries, key, &ConfigEntry::key);
  const ConfigNode enabled = ScalarNode(Kind::kBool, on ? "true" : "false");
  if (found != root.entries.end()) {
    FillAuto(found->value, "enabled", enabled);
  } else if (on) {
    root.entries.push_back({std::string(key), TableNode({{"enabled", enabled}})});
  }
}

void FillIn(const DeepSpeedFill& fill, ConfigNode& root) {
  FillSwitch(root, "fp16", fill.precision == Precision::kFp16);
  FillSwitch(root, "bf16", fill.precision == Precision::kBf16);
  if (fill.gradient_clipping) {
    FillAuto(root, "gradient_clipping", ScalarNode(Kind::kNumber, *fill.gradient_clipping));
  }
  if (fill.gradient_accumulation_steps) {
    FillAuto(root, "gradient_accumulation_steps",
             ScalarNode(Kind::kNumber, std::to_string(*fill.gradient_accumulation_steps)));
  }
}

std::filesystem::path FindFile(const ConfigBlock& owner, std::string_view key,
                               const std::string& named) {
  const std::filesystem::path beside = std::filesystem::path(owner.file()).parent_path() / named;
  std::error_code ignored;
  for (const std::filesystem::path& path : {beside, std::filesystem::path(named)}) {
    if (std::filesystem::exists(path, ignored)) return path;
  }
  owner.Refuse(key, "no such DeepSpeed file",
               "its path from this file or from the working directory", Quoted(named));
}

}  // namespace

TrainingConfig ReadOwnDeepSpeed(const ConfigBlock& owner, std::string_view key,
                                const DeepSpeedFill& fill, const ConfigOptions& options) {
  const ConfigNode& value = *owner.Find(key);
  if (value.kind == Kind::kTable) {
    ConfigNode root = value;
    FillIn(fill, root);
    return ReadDeepSpeed(ConfigBlock(owner.file(), root), options);
  }
  if (value.kind != Kind::kText) {
    owner.Refuse(key, "DeepSpeed scales the loss of this run", "the path of its file",
                 DescribeNode(value));
  }
  const std::string path = FindFile(owner, key, value.text).string();
  ConfigNode root = ReadConfigFile(path);
  const ConfigBlock file(path, root);
  if (!LooksLikeDeepSpeed(file)) file.Refuse("", "not a configuration of DeepSpeed", "its keys");
  FillIn(fill, root);
  TrainingConfig config = ReadDeepSpeed(file, options);
  config.notes.insert(config.notes.begin(), "DeepSpeed's file " + Printable(path) + " decides");
  return config;
}

}  // namespace dlsim::sim
