// SPDX-License-Identifier: Apache-2.0
#include "sim/config/foreign_stacks.h"

#include <algorithm>
#include <array>
#include <vector>

#include "dlsim/error.h"
#include "sim/config/arguments.h"
#include "sim/config/dialects.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

struct ForeignSetting {
  std::string_view path;
  std::string_view parameter;
};

struct ForeignStack {
  std::string_view name;
  std::string_view policy;                        // of a run in fp16
  std::vector<std::string_view> marks;            // one is enough: paths that are all there
  std::vector<std::string_view> precision;        // paths of values that tell the format
  std::vector<ForeignSetting> settings = {};      // numbers that are parameters of the policy
  std::vector<std::string_view> deepspeed = {};   // paths that name a DeepSpeed file
  bool (*is_read)(const ConfigBlock&) = nullptr;  // of a stack whose other files are read
};

// In the order in which they are tried.
const std::vector<ForeignStack>& ForeignStacks() {
  static const std::vector<ForeignStack> stacks = {
      {.name = "Accelerate",
       .policy = "torch",
       .marks = {"distributed_type mixed_precision", "distributed_type compute_environment"},
       .precision = {"mixed_precision"},
       .is_read = LooksLikeAccelerate},
      {.name = "verl",
       .policy = "torch",
       .marks = {"actor_rollout_ref", "_target_ param_offload",
                 "model.partial_pretrain data.train_files"},
       .precision = {"actor_rollout_ref.actor.fsdp_config.dtype",
                     "actor_rollout_ref.actor.torchtitan.dtype", "dtype"},
       .is_read = LooksLikeVerl},
      {.name = "axolotl",
       .policy = "torch",
       .marks = {"base_model datasets", "base_model micro_batch_size", "base_model sequence_len"},
       .precision = {"bf16", "fp16"},
       .deepspeed = {"deepspeed"}},
      {.name = "ms-swift",
       .policy = "torch",
       .marks = {"tuner_type model", "train_type model"},
       .precision = {"bf16", "fp16", "torch_dtype"},
       .deepspeed = {"deepspeed"}},
      {.name = "LLaMA-Factory",
       .policy = "torch",
       .marks = {"finetuning_type stage", "finetuning_type template"},
       .precision = {"bf16", "fp16", "pure_bf16"},
       .is_read = LooksLikeHfTrainer},
      {.name = "Hugging Face TrainingArguments",
       .policy = "torch",
       .marks = {"per_device_train_batch_size", "model_name_or_path", "output_dir learning_rate"},
       .precision = {"bf16", "fp16", "torch_dtype"},
       .is_read = LooksLikeHfTrainer},
      {.name = "NeMo with Megatron",
       .policy = "apex-hysteresis",
       .marks = {"model.native_amp_init_scale", "model.megatron_amp_O2"},
       .precision = {"trainer.precision", "trainer.plugins.precision"},
       .settings = {{"model.native_amp_init_scale", "init_scale"},
                    {"model.native_amp_growth_interval", "growth_interval"},
                    {"model.hysteresis", "hysteresis"}},
       .is_read = LooksLikeLightning},
      {.name = "NeMo or PyTorch Lightning",
       .policy = "torch",
       .marks = {"exp_manager", "trainer.precision", "trainer.devices", "trainer.accelerator",
                 "trainer.max_epochs"},
       .precision = {"trainer.precision"},
       .is_read = LooksLikeLightning},
      {.name = "Megatron-LM without training",
       .policy = "megatron",
       .marks = {"MODEL_ARGS"},
       .precision = {"MODEL_ARGS.--bf16", "MODEL_ARGS.--fp16"},
       .is_read = LooksLikeMegatron},
      {.name = "fairseq",
       .policy = "fairseq",
       .marks = {"common.fp16", "fairseq.common", "task criterion", "task dataset", "task model",
                 "dataset criterion optimizer"},
       .precision = {"common.bf16", "common.fp16", "fairseq.common.fp16"},
       .is_read = LooksLikeFairseq},
      {.name = "torchtitan",
       .policy = "torch",
       .marks = {"training.mixed_precision_param", "job.dump_folder"},
       .precision = {"training.mixed_precision_param"}},
  };
  return stacks;
}

// Returns the format that the stack's values name: `fp16: true`, `precision: bf16-mixed`, 16, 32.
std::string_view FindFormat(const ConfigNode& root, const ForeignStack& stack) {
  for (const std::string_view path : stack.precision) {
    const ConfigNode* value = root.FindPath(path);
    if (value == nullptr) continue;
    // Of a switch, its key tells the format; "auto" leaves it to the device.
    const bool is_on = value->kind == Kind::kBool ? value->text == "true" : value->text == "auto";
    const std::string_view text = is_on ? path : std::string_view(value->text);
    if (text.find("bf16") != text.npos || text.find("bfloat16") != text.npos) return "bf16";
    if (text.find("16") != text.npos) return "fp16";
    if (text.find("32") != text.npos || text == "no") return "float32";
  }
  return "";
}

// Returns the DeepSpeed file that the file names, or nothing.
std::string FindDeepSpeedFile(const ConfigNode& root, const ForeignStack& stack) {
  for (const std::string_view path : stack.deepspeed) {
    const ConfigNode* value = root.FindPath(path);
    if (value != nullptr && value->kind == Kind::kText) return value->text;
  }
  return "";
}

// The options that do what the file asks for.
std::string OptionsFor(const ConfigNode& root, const ForeignStack& stack) {
  const std::string_view format = FindFormat(root, stack);
  // None of them scales the loss in bfloat16.
  if (format == "bf16") return "--policy static --format bf16";
  if (format == "float32") return "nothing to simulate in float32, or a run in 16 bits";
  std::string options = "--policy " + std::string(stack.policy);
  if (!format.empty()) options += " --format fp16";
  for (const ForeignSetting& setting : stack.settings) {
    const ConfigNode* value = root.FindPath(setting.path);
    if (value == nullptr || value->kind != Kind::kNumber) continue;
    options += " --set " + std::string(setting.parameter) + "=" + Printable(value->text);
  }
  return options;
}

}  // namespace

void RefuseForeignStack(const ConfigBlock& file) {
  const ConfigNode& root = file.node();
  for (const ForeignStack& stack : ForeignStacks()) {
    if (!HasMark(root, stack.marks)) continue;
    if (stack.is_read != nullptr && stack.is_read(file)) return;
    const std::string deepspeed = FindDeepSpeedFile(root, stack);
    file.Refuse("", "a configuration of " + std::string(stack.name) + ", which is not read",
                deepspeed.empty() ? OptionsFor(root, stack)
                                  : "--config with the DeepSpeed file " + Quoted(deepspeed));
  }
}

}  // namespace dlsim::sim
