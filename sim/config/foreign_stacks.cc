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
  std::string_view fallback = {};  // the stack's default where it is not that of the policy
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
      {.name = "fairseq2",
       .policy = "torch",
       .marks = {"trainer.fp16_loss_scale", "trainer.data_parallelism", "trainer.mixed_precision"},
       .precision = {"trainer.mixed_precision.dtype", "trainer.dtype"}},
      {.name = "LeRobot",
       .policy = "torch",
       .marks = {"policy.type dataset.repo_id"},
       .precision = {}},
      {.name = "NeMo RL",
       .policy = "NAME",
       .marks = {"policy.dtensor_cfg", "policy.megatron_cfg", "policy.train_global_batch_size"},
       .precision = {"policy.precision"}},
      {.name = "torchtune",
       .policy = "torch",
       .marks = {"model._component_", "optimizer._component_", "loss._component_"},
       .precision = {"dtype"}},
      {.name = "diffusion-pipe",
       .policy = "NAME",
       .marks = {"pipeline_stages micro_batch_size_per_gpu",
                 "dataset micro_batch_size_per_gpu model.dtype"},
       .precision = {"model.dtype"}},
      {.name = "Composer",
       .policy = "torch",
       .marks = {"max_duration precision", "max_duration train_loader"},
       .precision = {"precision"}},
      {.name = "MindFormers",
       .policy = "mindspore-cell",
       .marks = {"runner_wrapper runner_config", "runner_config parallel_config"},
       .precision = {"model.model_config.compute_dtype"}},
      {.name = "axolotl",
       .policy = "torch",
       .marks = {"base_model datasets", "base_model micro_batch_size", "base_model sequence_len",
                 "base_model gradient_accumulation_steps", "base_model adapter"},
       .precision = {"bf16", "fp16"},
       .deepspeed = {"deepspeed"}},
      {.name = "ms-swift",
       .policy = "torch",
       .marks = {"tuner_type model", "train_type model", "--tuner_type --model",
                 "--train_type --model"},
       .precision = {"bf16", "fp16", "torch_dtype", "--bf16", "--fp16", "--torch_dtype"},
       .deepspeed = {"deepspeed", "--deepspeed"}},
      {.name = "PaddleNLP",
       .policy = "paddle",
       .marks = {"scale_loss tensor_parallel_degree", "scale_loss per_device_train_batch_size",
                 "tensor_parallel_degree per_device_train_batch_size",
                 "amp_master_grad per_device_train_batch_size",
                 "--scale_loss --per_device_train_batch_size",
                 "--tensor_parallel_degree --per_device_train_batch_size",
                 "--amp_master_grad --per_device_train_batch_size"},
       .precision = {"bf16", "fp16", "--bf16", "--fp16"},
       .settings = {{"scale_loss", "init_loss_scaling", "32768"}}},
      {.name = "LLaMA-Factory",
       .policy = "torch",
       .marks = {"finetuning_type stage", "finetuning_type template"},
       .precision = {"bf16", "fp16", "pure_bf16"},
       .is_read = LooksLikeHfTrainer},
      {.name = "Hugging Face TrainingArguments",
       .policy = "torch",
       .marks = {"per_device_train_batch_size", "model_name_or_path"},
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
       .precision = {"training.mixed_precision_param"},
       .is_read = LooksLikeTorchtitan},
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
    // ms-swift switches fp16 on for weights in float32.
    if (text.find("32") != text.npos && stack.name == "ms-swift") return "fp16";
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

// True for a file that ms-swift brings along, such as zero2 or zero3_offload.
bool IsBuiltIn(std::string_view deepspeed) {
  return deepspeed.starts_with("zero") && deepspeed.find_first_of("./") == deepspeed.npos;
}

// The options that do what the file asks for.
std::string OptionsFor(const ConfigNode& root, const ForeignStack& stack) {
  const std::string_view format = FindFormat(root, stack);
  // None of them scales the loss in bfloat16.
  if (format == "bf16") return "--policy static --format bf16";
  if (format == "float32") return "nothing to simulate in float32, or a run in 16 bits";
  const bool is_zero = !FindDeepSpeedFile(root, stack).empty();
  std::string options = "--policy " + std::string(is_zero ? "deepspeed" : stack.policy);
  if (!format.empty()) options += " --format fp16";
  for (const ForeignSetting& setting : stack.settings) {
    const ConfigNode* value = root.FindPath(setting.path);
    if (value == nullptr) value = root.FindPath("--" + std::string(setting.path));
    const bool given = value != nullptr && value->kind == Kind::kNumber;
    if (!given && setting.fallback.empty()) continue;
    options += " --set " + std::string(setting.parameter) + "=" +
               (given ? Printable(value->text) : std::string(setting.fallback));
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
                deepspeed.empty() || IsBuiltIn(deepspeed)
                    ? OptionsFor(root, stack)
                    : "--config with the DeepSpeed file " + Quoted(deepspeed));
  }
}

}  // namespace dlsim::sim
