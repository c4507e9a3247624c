// SPDX-License-Identifier: Apache-2.0
#include "sim/config/deepspeed_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <system_error>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/config/arguments.h"
#include "sim/config/config_file.h"
#include "sim/config/dialects.h"
#include "sim/config/shell_script.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

// True if Python's == holds: 1 == 1.0 == True.
bool SameValue(const ConfigNode& a, const ConfigNode& b) {
  const auto number = [](const ConfigNode& node) -> std::optional<double> {
    if (node.kind == Kind::kBool) return node.text == "true" ? 1 : 0;
    if (node.kind != Kind::kNumber) return std::nullopt;
    return ParseNumber(node.text, "");
  };
  const std::optional<double> first = number(a), second = number(b);
  return first && second ? *first == *second : a.kind == b.kind && a.text == b.text;
}

// Gives a key its value where it is "auto"; else refuses another value if they must match.
void FillAuto(const ConfigBlock& file, ConfigNode& table, std::string_view key,
              const ConfigNode& value, bool must_match) {
  const auto found = std::ranges::find(table.entries, key, &ConfigEntry::key);
  if (found == table.entries.end() || found->value.kind == Kind::kNull) return;
  if (found->value.text == "auto") {
    const int line = found->value.line;
    found->value = value;
    found->value.line = line;
  } else if (must_match && !SameValue(found->value, value)) {
    file.Refuse(key, "differs from the arguments of Hugging Face's trainer, which refuses it",
                DescribeNode(value) + " or auto", DescribeNode(found->value));
  }
}

// Switches a type on or off where it is "auto"; Accelerate adds a block that is missing.
void FillSwitch(const ConfigBlock& file, ConfigNode& root, std::string_view key, bool on, bool add,
                bool must_match) {
  const auto found = std::ranges::find(root.entries, key, &ConfigEntry::key);
  const ConfigNode enabled = ScalarNode(Kind::kBool, on ? "true" : "false");
  if (found != root.entries.end()) {
    if (found->value.kind != Kind::kTable) return;
    const std::optional<ConfigBlock> block = file.Table(key);
    FillAuto(*block, found->value, "enabled", enabled, must_match);
  } else if (add) {
    root.entries.push_back({std::string(key), TableNode({{"enabled", enabled}})});
  }
}

// A table inside of another, or nullptr.
ConfigNode* TableIn(ConfigNode& root, std::initializer_list<std::string_view> path) {
  ConfigNode* table = &root;
  for (const std::string_view key : path) {
    const auto found = std::ranges::find(table->entries, key, &ConfigEntry::key);
    if (found == table->entries.end() || found->value.kind != Kind::kTable) return nullptr;
    table = &found->value;
  }
  return table;
}

ConfigNode NumberNode(double value) { return ScalarNode(Kind::kNumber, fmt::format("{}", value)); }

// Only what is "auto": nothing here decides whether the original would refuse the file.
void FillAdam(const ConfigBlock& file, const UpdateSettings& adam, ConfigNode& root) {
  if (ConfigNode* const params = TableIn(root, {"optimizer", "params"})) {
    const auto fill = [&](std::string_view key, const std::optional<double>& value) {
      if (value) FillAuto(file, *params, key, NumberNode(*value), false);
    };
    fill("lr", adam.lr);
    fill("eps", adam.eps);
    fill("weight_decay", adam.weight_decay);
    if (adam.beta1 && adam.beta2) {
      const ConfigNode betas = {
          Kind::kList, "", 0, {{"", NumberNode(*adam.beta1)}, {"", NumberNode(*adam.beta2)}}};
      FillAuto(file, *params, "betas", betas, false);
    }
  }
  ConfigNode* const schedule = TableIn(root, {"scheduler", "params"});
  if (schedule == nullptr || !adam.lr) return;
  FillAuto(file, *schedule, "warmup_max_lr", NumberNode(*adam.lr), false);
}

// `root` is the tree of `file`.
void FillIn(const ConfigBlock& file, const DeepSpeedFill& fill, ConfigNode& root) {
  if (root.Find("zero_optimization") == nullptr) {
    file.Refuse("", "Please specify the ZeRO optimization config in the DeepSpeed config",
                "zero_optimization, perhaps with stage 0");
  }
  const auto number = [&](std::string_view key, const std::string& value) {
    FillAuto(file, root, key, ScalarNode(Kind::kNumber, value), fill.must_match);
  };
  if (fill.gradient_clipping) number("gradient_clipping", *fill.gradient_clipping);
  // Accelerate then has 1, and the batch sizes do not agree.
  if (fill.must_match && root.Find("gradient_accumulation_steps") == nullptr &&
      file.Is("train_batch_size", "auto") && *fill.gradient_accumulation_steps != 1) {
    file.Refuse("train_batch_size",
                "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
                "world_size",
                "gradient_accumulation_steps: auto as well");
  }
  if (fill.gradient_accumulation_steps) {
    number("gradient_accumulation_steps", std::to_string(*fill.gradient_accumulation_steps));
  }
  if (fill.micro_batch_size) {
    number("train_micro_batch_size_per_gpu", std::to_string(*fill.micro_batch_size));
  }
  FillAdam(file, fill.adam, root);
  const bool fp16 = fill.precision == Precision::kFp16, bf16 = fill.precision == Precision::kBf16;
  FillSwitch(file, root, "fp16", fill.fp16 || fp16, fp16, fill.must_match);
  FillSwitch(file, root, "bf16", fill.bf16 || bf16, bf16, fill.must_match);
}

std::filesystem::path FindFile(const ConfigBlock& owner, std::string_view key,
                               const std::string& named) {
  const std::filesystem::path next_to_file =
      std::filesystem::path(owner.file()).parent_path() / named;
  std::error_code ignored;
  for (const std::filesystem::path& path : {next_to_file, std::filesystem::path(named)}) {
    if (std::filesystem::exists(path, ignored)) return path;
  }
  owner.Refuse(key, "no such DeepSpeed file",
               "its path from this file or from the working directory", Quoted(named));
}

}  // namespace

void RefuseDeepSpeedRun(const ConfigBlock& arguments) {
  const ConfigNode* file = arguments.Find("deepspeed_config");
  std::string name;
  if (file != nullptr && file->kind == Kind::kText) {
    name = file->text.find(kUnknownText) == std::string::npos
               ? " " + Quoted(file->text)
               : ", whose name depends on how the script is run";
  }
  arguments.Refuse("deepspeed", "DeepSpeed scales the loss of this run",
                   "--config with the DeepSpeed file" + name);
}

TrainingConfig ReadOwnDeepSpeed(const ConfigBlock& owner, std::string_view key,
                                const DeepSpeedFill& fill, const ConfigOptions& options) {
  const ConfigNode& value = *owner.Find(key);
  if (value.kind == Kind::kTable) {
    ConfigNode root = value;
    const ConfigBlock table(owner.file(), root);
    FillIn(table, fill, root);
    return ReadDeepSpeed(table, options);
  }
  if (value.kind == Kind::kBool && owner.Has("deepspeed_config")) RefuseDeepSpeedRun(owner);
  if (value.kind != Kind::kText) {
    owner.Refuse(key, "DeepSpeed scales the loss of this run", "the path of its file",
                 DescribeNode(value));
  }
  const std::string path = FindFile(owner, key, *owner.Text(key)).string();
  ConfigNode root = ReadConfigFile(path);
  const ConfigBlock file(path, root);
  if (!LooksLikeDeepSpeed(file)) file.Refuse("", "not a configuration of DeepSpeed", "its keys");
  FillIn(file, fill, root);
  TrainingConfig config = ReadDeepSpeed(file, options);
  config.notes.insert(config.notes.begin(), "DeepSpeed's file " + Printable(path) + " decides");
  return config;
}

}  // namespace dlsim::sim
