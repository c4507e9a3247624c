// SPDX-License-Identifier: Apache-2.0
// Hugging Face's TrainingArguments, as YAML, JSON or a command line, also of LLaMA-Factory.
// Compared with huggingface/transformers 5.24.0: training_args.py, trainer.py and
// integrations/deepspeed.py.
#include <algorithm>
#include <array>

#include "dlsim/error.h"
#include "sim/config/arguments.h"
#include "sim/config/cerebras_keys.h"
#include "sim/config/deepspeed_file.h"
#include "sim/config/dialects.h"
#include "sim/config/half_precision.h"
#include "sim/config/hf_updates.h"
#include "sim/config/launch_file.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

// output_dir and learning_rate are diffusers' and kohya's, too: a switch goes with them.
constexpr std::array<std::string_view, 13> kArgumentMarks = {
    "per_device_train_batch_size",
    "model_name_or_path",
    "output_dir learning_rate fp16",
    "output_dir learning_rate bf16",
    "output_dir learning_rate deepspeed",
    "--per_device_train_batch_size",
    "--model_name_or_path --output_dir",
    "--model_name_or_path --dataset_name",
    "--model_name_or_path --learning_rate",
    "--model_name_or_path --deepspeed",
    "--output_dir --learning_rate --fp16",
    "--output_dir --learning_rate --bf16",
    "--output_dir --learning_rate --deepspeed"};

// Other keys that decide are not read: an own 8-bit mode, Megatron in place of the trainer.
constexpr std::array<std::string_view, 4> kOthers = {"fp8", "fp8_backend",
                                                     "tensor_model_parallel_size", "use_megatron"};

constexpr std::array<std::string_view, 7> kArgumentKeys = {
    "fp16",          "bf16",      "half_precision_backend",     "fp16_backend",
    "max_grad_norm", "deepspeed", "gradient_accumulation_steps"};

constexpr std::array<std::string_view, 4> kBf16Switches = {"bf16", "pure_bf16", "torch_dtype",
                                                           "dtype"};

// Arguments of releases before 5.0.
constexpr std::array<std::string_view, 3> kOldKeys = {"half_precision_backend", "fp16_backend",
                                                      "fp16_opt_level"};

bool IsOn(const ConfigNode& root, std::string_view key) {
  const ConfigNode* value = root.Find(key);
  return value != nullptr && value->kind != Kind::kNull &&
         !(value->kind == Kind::kBool && value->text == "false");
}

bool UsesApex(const ConfigBlock& arguments) {
  constexpr std::array<std::string_view, 5> kBackends = {"auto", "amp", "cuda_amp", "cpu_amp",
                                                         "apex"};
  // The older name loses.
  const auto older = arguments.Choice("fp16_backend", kBackends);
  const auto backend = arguments.Choice("half_precision_backend", kBackends);
  return (backend && *backend != "auto" ? backend : older).value_or("auto") == "apex";
}

// The precision of the switches, else of weights that are loaded in 16 bits.
Precision ReadPrecision(const ConfigBlock& arguments, TrainingConfig& config) {
  if (arguments.Bool("pure_bf16").value_or(false)) return Precision::kBf16;
  const Precision switched = ReadSwitches(arguments, "fp16", "bf16");
  if (switched != Precision::kFloat32) return switched;
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    if (!arguments.Has(key) || arguments.Is(key, "auto")) continue;
    const std::string format = *ReadFormat(arguments, key);
    if (format == "bf16") return Precision::kBf16;
    if (format == "fp16") {
      config.notes.push_back(std::string(key) + ": weights in fp16, no loss scaling without fp16");
      config.formats = {"fp16"};
    }
  }
  return Precision::kFloat32;
}

// DeepSpeed's own rules, with its "auto" values from the arguments.
TrainingConfig ReadWithDeepSpeed(const ConfigBlock& arguments, std::string_view key,
                                 const ConfigOptions& options) {
  const auto norm = arguments.Number("max_grad_norm", NumberRange::kAny);
  const DeepSpeedFill fill = {
      .precision = ReadSwitches(arguments, "fp16", "bf16"),
      .fp16 = ReadSwitch(arguments, "fp16_full_eval"),
      .bf16 = ReadSwitch(arguments, "bf16_full_eval"),
      .gradient_clipping = norm ? norm->text : "1.0",
      .gradient_accumulation_steps =
          arguments.Integer("gradient_accumulation_steps", 1).value_or(1),
      .micro_batch_size = arguments.Integer("per_device_train_batch_size", 1).value_or(8),
      .adam = TrainerAdam(arguments),
      .must_match = true};
  return ReadOwnDeepSpeed(arguments, key, fill, options);
}

TrainingConfig ReadWithApex(const ConfigBlock& arguments) {
  const std::string level = arguments.Text("fp16_opt_level").value_or("O1");
  const ConfigNode root = TableNode({ConfigEntry{
      "apex.amp", TableNode({ConfigEntry{"opt_level", ScalarNode(Kind::kText, level)}})}});
  return ReadApex(ConfigBlock(arguments.file(), root), {});
}

// Where fp16 is off and nothing is said of bf16 it depends on the trainer.
void RequirePrecision(const ConfigBlock& arguments) {
  const auto given = [&](std::string_view key) { return arguments.Has(key); };
  if (std::ranges::any_of(kBf16Switches, given) || ReadSwitch(arguments, "fp16")) return;
  arguments.Refuse("",
                   "neither fp16 nor bf16 is given: transformers' Trainer computes in float32 "
                   "then, TRL's trainers since 0.20 in bf16",
                   "fp16 or bf16, or --policy static --format bf16");
}

TrainingConfig ReadArguments(const ConfigBlock& arguments) {
  RequirePrecision(arguments);
  TrainingConfig config = {.kind = "", .formats = {}, .policies = {}};
  const Precision precision = ReadPrecision(arguments, config);
  if (precision == Precision::kFp16 && UsesApex(arguments)) {
    config = ReadWithApex(arguments);
  } else if (precision != Precision::kFloat32 || config.formats.empty()) {
    ApplyPrecision(precision, {"torch", {}}, config);
  } else {
    config.policies = {NoScaler()};
  }
  if (!config.formats.empty()) {
    config.updates = ReadHfUpdates(arguments, ReadSwitches(arguments, "fp16", "bf16"));
  }
  AddNotes(arguments.NoteMisspelt(kArgumentKeys), config.notes);
  for (const std::string_view key : kOldKeys) {
    if (!arguments.Has(key)) continue;
    config.notes.push_back(std::string(key) + " is gone from transformers 5, which refuses it");
  }
  const ConfigNode* norm = arguments.node().Find("max_grad_norm");
  if (norm != nullptr && norm->kind == Kind::kNull) {
    arguments.Refuse("max_grad_norm", "transformers 5 refuses null", "a number; 0 is off");
  }
  ReadNormLimit(arguments, "max_grad_norm", 1.0, config);
  config.grad_accum_steps = arguments.Integer("gradient_accumulation_steps", 1);
  return config;
}

}  // namespace

bool LooksLikeHfTrainer(const ConfigBlock& file) {
  const ConfigNode& root = file.node();
  if (!HasMark(root, kArgumentMarks)) return false;
  // train_batch_size is that of programs with a training loop of their own.
  if (IsCommandLine(root)) {
    return root.Find("--train_batch_size") == nullptr ||
           root.Find("--per_device_train_batch_size") != nullptr;
  }
  return std::ranges::none_of(kOthers, [&](std::string_view key) { return IsOn(root, key); });
}

TrainingConfig ReadHfTrainer(const ConfigBlock& file, const ConfigOptions& options) {
  const ConfigNode table = ArgumentTable(file.node());
  const ConfigBlock arguments(file.file(), table);
  for (const std::string_view key : {"max_grad_norm", "gradient_accumulation_steps"}) {
    RequireUnquoted(arguments, key);
  }
  if (ReadSwitch(arguments, "fp16_full_eval") && ReadSwitch(arguments, "bf16_full_eval")) {
    arguments.Refuse("bf16_full_eval", "at most one of fp16 and bf16 can be true for full eval");
  }
  // The trainer's own argument, else that of `accelerate launch`.
  const std::string_view deepspeed =
      arguments.Has("deepspeed") ? "deepspeed" : "deepspeed_config_file";
  const bool has_deepspeed = arguments.Has(deepspeed);
  if (arguments.Has("use_deepspeed") && !has_deepspeed) {
    arguments.Refuse("use_deepspeed", "DeepSpeed scales the loss of this run",
                     "--config with its file");
  }
  const bool may_launch = IsCommandLine(file.node()) && !has_deepspeed;
  std::optional<LaunchFile> launch;
  if (may_launch) {
    const bool fp16 = ReadSwitch(arguments, "fp16"), bf16 = ReadSwitch(arguments, "bf16");
    launch = ReadLaunchFile(arguments, fp16);
    const std::string precision = fp16 ? "fp16" : bf16 ? "bf16" : "";
    if (launch) {
      if (auto launched = ReadLaunched(*launch, precision, options)) return *launched;
    }
  }
  TrainingConfig config =
      has_deepspeed ? ReadWithDeepSpeed(arguments, deepspeed, options) : ReadArguments(arguments);
  if (may_launch) NoteUnreadLaunchFile(arguments, launch, config.notes);
  config.kind = "Hugging Face TrainingArguments";
  return config;
}

}  // namespace dlsim::sim
