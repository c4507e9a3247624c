// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's JSON, also as Hugging Face's trainer has it, with "auto" values, and as GPT-NeoX has
// it, in YAML with `precision`.
// Source: microsoft/DeepSpeed, deepspeed/runtime/config.py and precision_config.py, 0.19.8;
// EleutherAI/gpt-neox, megatron/neox_arguments/arguments.py.
#include <algorithm>
#include <array>

#include "sim/config/arguments.h"
#include "sim/config/cerebras_keys.h"
#include "sim/config/deepspeed_types.h"
#include "sim/config/deepspeed_values.h"
#include "sim/config/dialects.h"
#include "sim/config/half_precision.h"

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 7> kDeepSpeedKeys = {"fp16",
                                                            "bf16",
                                                            "bfloat16",
                                                            "zero_optimization",
                                                            "gradient_clipping",
                                                            "gradient_accumulation_steps",
                                                            "amp"};
constexpr std::array<std::string_view, 1> kZeroKeys = {"stage"};

// Keys of GPT-NeoX's files, one of which is enough.
constexpr std::array<std::string_view, 7> kNeoxKeys = {
    "precision",  "pipe-parallel-size",  "pipe_parallel_size", "num-layers",
    "num_layers", "model-parallel-size", "model_parallel_size"};

// DeepSpeed whose rules EleutherAI's fork, DeeperSpeed, has.
constexpr StackVersion kNeoxFork = {0, 16, 0};

// Keys of parts of DeepSpeed that no longer exist.
constexpr StackVersion kRemovesFeatures = {0, 19, 8};
constexpr std::array<std::string_view, 11> kRemovedKeys = {"nebula",
                                                           "compression_training",
                                                           "amp",
                                                           "quantize_training",
                                                           "sparse_gradients",
                                                           "eigenvalue",
                                                           "sparse_attention",
                                                           "elasticity",
                                                           "graph_harvesting",
                                                           "curriculum_learning",
                                                           "progressive_layer_drop"};

void NoteDeepSpeedSlips(const ConfigBlock& file, std::vector<std::string>& notes) {
  AddNotes(file.NoteMisspelt(kDeepSpeedKeys), notes);
  const ConfigNode* zero = file.Find("zero_optimization");
  if (zero != nullptr && zero->kind == ConfigNode::Kind::kTable) {
    AddNotes(file.Table("zero_optimization")->NoteMisspelt(kZeroKeys), notes);
  }
}

// What happens to gradients between ranks is not in a trace.
void NoteNotSimulated(const ConfigBlock& file, std::vector<std::string>& notes) {
  const auto note = [&](std::string_view key) {
    notes.push_back(std::string(key) +
                    " is not simulated: gradients are taken as the trace has them");
  };
  if (file.Bool("prescale_gradients").value_or(false)) note("prescale_gradients");
  const auto factor = file.Number("gradient_predivide_factor", NumberRange::kAny);
  if (factor && factor->value != 1) note("gradient_predivide_factor");
  if (file.Has("communication_data_type")) note("communication_data_type");
}

// GPT-NeoX has a file of its own for model and DeepSpeed, and its own fork of DeepSpeed.
bool IsGptNeox(const ConfigBlock& file) {
  return std::ranges::any_of(kNeoxKeys, [&](std::string_view key) { return file.Has(key); });
}

void CheckRemovedKeys(const DeepSpeedValues& file) {
  for (const std::string_view key : kRemovedKeys) {
    if (file.block.Has(key)) file.RefusedSince(kRemovesFeatures, key, "this key");
  }
}

// Apex's amp.initialize() gets the block but for `enabled`, and scales the loss.
void ReadAmp(const ConfigBlock& file, TrainingConfig& config) {
  const std::optional<ConfigBlock> amp = file.Table("amp");
  if (!amp || !amp->Bool("enabled").value_or(false) || !config.formats.empty()) return;
  ConfigNode arguments = TableNode({});
  for (const std::string_view key :
       {"opt_level", "loss_scale", "min_loss_scale", "max_loss_scale"}) {
    const ConfigNode* value = amp->Find(key);
    if (value != nullptr) arguments.entries.push_back({std::string(key), *value});
  }
  const ConfigNode root = TableNode({ConfigEntry{"apex.amp", arguments}});
  TrainingConfig apex = ReadApex(ConfigBlock(file.file(), root), {});
  config.formats = std::move(apex.formats);
  config.policies = std::move(apex.policies);
  config.updates = std::move(apex.updates);
  std::erase(config.notes, kFloat32Note);
  AddNotes(std::move(apex.notes), config.notes);
}

// The default is 1.0 since 0.19.3, and in GPT-NeoX.
void ReadDeepSpeedClipping(const DeepSpeedValues& file, bool neox, TrainingConfig& config) {
  // Hugging Face's trainer fills in its max_grad_norm, 1.0 by default.
  file.RequireValue("gradient_clipping");
  const bool is_auto = file.Auto("gradient_clipping", "1.0, the default of max_grad_norm");
  const std::optional<ConfigNumber> limit =
      is_auto ? ConfigNumber{1, "1.0"} : file.block.Number("gradient_clipping", NumberRange::kAny);
  if (limit) {
    if (limit->value > 0) config.clipping.max_norm = limit->value;
    return;
  }
  if (!neox && file.release.IsBefore(kClipsByDefault)) return;
  config.clipping.max_norm = 1;
  if (neox || file.release.named()) return;
  config.notes.push_back(
      "gradient_clipping is not given: 1.0, the default since DeepSpeed 0.19.3; none before "
      "(--config-version)");
}

// A number in quotes ends in a TypeError of the original.
void ReadDeepSpeedAccumulation(const DeepSpeedValues& file, TrainingConfig& config) {
  constexpr std::string_view kKey = "gradient_accumulation_steps";
  if (file.Auto(kKey, "1")) return;
  const ConfigNode* steps = file.block.Find(kKey);
  if (steps != nullptr && steps->kind == ConfigNode::Kind::kText) {
    file.block.Refuse(kKey, "wrong type", "an integer", DescribeNode(*steps));
  }
  config.grad_accum_steps = file.block.Integer(kKey, 1);
}

}  // namespace

// Keys that other stacks have, too (fp16: true, gradient_accumulation_steps), say nothing alone.
bool LooksLikeDeepSpeed(const ConfigBlock& file) {
  const ConfigNode& root = file.node();
  for (const std::string_view key :
       {"zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer"}) {
    if (root.Find(key) != nullptr) return true;
  }
  for (const std::string_view key : {"fp16", "bf16", "bfloat16", "torch_autocast"}) {
    const ConfigNode* types = root.Find(key);
    if (types != nullptr && types->kind == ConfigNode::Kind::kTable) return true;
  }
  return root.Find("train_batch_size") != nullptr &&
         (root.Find("steps_per_print") != nullptr || root.FindPath("optimizer.params") != nullptr ||
          root.FindPath("amp.enabled") != nullptr);
}

TrainingConfig ReadDeepSpeed(const ConfigBlock& file, const ConfigOptions& options) {
  TrainingConfig config = {.kind = "DeepSpeed", .formats = {}, .policies = {}};
  const bool neox = IsGptNeox(file);
  const DeepSpeedRelease release(neox && !options.version ? kNeoxFork : options.version);
  const DeepSpeedValues values = {file, release, config.notes};
  NoteDeepSpeedSlips(file, config.notes);
  for (const std::string_view key : {"fp16", "zero_optimization"}) values.RequireValue(key);
  CheckRemovedKeys(values);
  ReadDeepSpeedTypes(values, config);
  ReadAmp(file, config);
  NoteNotSimulated(file, config.notes);
  ReadDeepSpeedClipping(values, neox, config);
  ReadDeepSpeedAccumulation(values, config);
  return config;
}

}  // namespace dlsim::sim
