// SPDX-License-Identifier: Apache-2.0
// A run under Accelerate whose script takes mixed_precision: `accelerate launch`, diffusers'
// examples, and kohya's sd-scripts, also as TOML. Source: huggingface/accelerate 1.15,
// huggingface/diffusers, examples; kohya-ss/sd-scripts, library/train_util.py.
#include <array>

#include "dlsim/error.h"
#include "sim/config/arguments.h"
#include "sim/config/deepspeed_file.h"
#include "sim/config/dialects.h"
#include "sim/config/half_precision.h"
#include "sim/config/launch_file.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

constexpr std::array<std::string_view, 5> kRunMarks = {
    "--mixed_precision --pretrained_model_name_or_path", "--mixed_precision --output_dir",
    "--mixed_precision --learning_rate", "--mixed_precision --model_name_or_path",
    "mixed_precision pretrained_model_name_or_path"};

constexpr std::array<std::string_view, 2> kTrainerSwitches = {"--fp16", "--bf16"};

// kohya's reader puts the tables of its TOML into one.
ConfigNode Flatten(const ConfigNode& root) {
  ConfigNode flat = TableNode({});
  for (const ConfigEntry& entry : root.entries) {
    if (entry.value.kind == Kind::kTable) {
      for (const ConfigEntry& inner : entry.value.entries) flat.entries.push_back(inner);
    } else {
      flat.entries.push_back(entry);
    }
  }
  return flat;
}

bool IsSwitchedOn(const ConfigBlock& arguments, std::string_view key) {
  const ConfigNode* value = arguments.Find(key);
  return value != nullptr && value->text != "false";
}

// DeepSpeed has a scaler of its own.
void RefuseOtherScalers(const ConfigBlock& arguments) {
  for (const std::string_view key : {"deepspeed", "use_deepspeed"}) {
    if (!IsSwitchedOn(arguments, key)) continue;
    arguments.Refuse(key, "DeepSpeed scales the loss of this run", "--config with its file");
  }
}

}  // namespace

bool LooksLikeAccelerateRun(const ConfigBlock& file) {
  if (LooksLikeAccelerate(file)) return true;
  if (HasMark(file.node(), kTrainerSwitches)) return false;  // of transformers' Trainer, which win
  if (IsCommandLine(file.node())) return HasMark(file.node(), kRunMarks);
  return HasMark(Flatten(file.node()), kRunMarks);
}

TrainingConfig ReadAccelerateRun(const ConfigBlock& file, const ConfigOptions& options) {
  const ConfigNode table = ArgumentTable(Flatten(file.node()));
  const ConfigBlock arguments(file.file(), table);
  if (file.Has("distributed_type") || !arguments.Has("mixed_precision")) {
    return ReadAccelerate(file, options);
  }
  constexpr std::array<std::string_view, 3> kNames = {"no", "fp16", "bf16"};
  const std::string name = *arguments.Choice("mixed_precision", kNames);
  const Precision precision = name == "fp16"   ? Precision::kFp16
                              : name == "bf16" ? Precision::kBf16
                                               : Precision::kFloat32;
  if (arguments.Has("deepspeed_config_file")) {
    const DeepSpeedFill fill = {
        .precision = precision,
        .gradient_clipping = {},
        .gradient_accumulation_steps = arguments.Integer("gradient_accumulation_steps", 1),
        .micro_batch_size = {}};
    TrainingConfig config = ReadOwnDeepSpeed(arguments, "deepspeed_config_file", fill, options);
    config.kind = "Accelerate with DeepSpeed";
    return config;
  }
  if (precision != Precision::kFloat32) RefuseOtherScalers(arguments);
  const auto launch = ReadLaunchFile(arguments, precision == Precision::kFp16);
  if (launch) {
    if (auto launched = ReadLaunched(*launch, name, options)) return *launched;
  }
  TrainingConfig config = {.kind = "Accelerate", .formats = {}, .policies = {}};
  ApplyPrecision(precision, {"torch", {}}, config);
  NoteUnreadLaunchFile(arguments, launch, config.notes);
  const bool has_default =
      arguments.Has("pretrained_model_name_or_path") || arguments.Has("model_name_or_path");
  ReadNormLimit(arguments, "max_grad_norm", has_default ? std::optional(1.0) : std::nullopt,
                config);
  config.grad_accum_steps = arguments.Integer("gradient_accumulation_steps", 1);
  return config;
}

}  // namespace dlsim::sim
