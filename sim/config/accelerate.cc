// SPDX-License-Identifier: Apache-2.0
// Hugging Face Accelerate's YAML, which `accelerate config` writes.
// Compared with huggingface/accelerate 1.15.0: accelerator.py and utils/dataclasses.py.
#include <algorithm>
#include <array>

#include "dlsim/error.h"
#include "sim/config/arguments.h"
#include "sim/config/cerebras_keys.h"
#include "sim/config/deepspeed_file.h"
#include "sim/config/dialects.h"
#include "sim/config/fsdp_types.h"
#include "sim/config/half_precision.h"
#include "sim/config/scaled_recipes.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

constexpr std::array<std::string_view, 2> kAccelerateMarks = {
    "distributed_type mixed_precision", "distributed_type compute_environment"};
constexpr std::array<std::string_view, 4> kAcceleratePrecisions = {"no", "fp16", "bf16", "fp8"};

// Keys that the plugin refuses together with a file of its own.
constexpr std::array<std::string_view, 8> kPluginKeys = {
    "gradient_accumulation_steps", "gradient_clipping",     "zero_stage",
    "offload_optimizer_device",    "offload_param_device",  "offload_param_nvme_path",
    "offload_optimizer_nvme_path", "zero3_save_16bit_model"};

// YAML reads an unquoted `no` as false, which has no lower().
std::string ReadAcceleratePrecision(const ConfigBlock& file) {
  const ConfigNode* value = file.Find("mixed_precision");
  if (value == nullptr) return "no";
  if (value->kind == Kind::kBool) {
    file.Refuse("mixed_precision", "'bool' object has no attribute 'lower'", "'no' in quotes",
                value->text);
  }
  const std::string name = Lowered(value->text);
  const bool known = std::ranges::count(kAcceleratePrecisions, name) > 0;
  return known ? name : *file.Choice("mixed_precision", kAcceleratePrecisions);
}

Precision PrecisionNamed(std::string_view name) {
  return name == "fp16"   ? Precision::kFp16
         : name == "bf16" ? Precision::kBf16
                          : Precision::kFloat32;
}

// Copies a setting of the plugin under DeepSpeed's own name.
void Copy(const ConfigBlock& plugin, std::string_view key, std::string_view name,
          ConfigNode& table) {
  const ConfigNode* value = plugin.Find(key);
  if (value == nullptr) return;
  ConfigNode copy = *value;
  if (plugin.HasNumber(key)) copy.kind = Kind::kNumber;  // in quotes it is converted
  table.entries.push_back({std::string(name), copy});
}

// The file that the plugin makes for DeepSpeed: ZeRO stage 2 by default, and the mixed precision.
TrainingConfig ReadPlugin(const ConfigBlock& file, const std::string& mixed_precision,
                          const ConfigOptions& options) {
  const ConfigNode empty = {Kind::kTable, "", 0, {}};
  const ConfigBlock plugin =
      file.Table("deepspeed_config").value_or(ConfigBlock(file.file(), empty));
  ConfigNode zero = empty, root = empty;
  Copy(plugin, "zero_stage", "stage", zero);
  if (zero.entries.empty()) zero.entries.push_back({"stage", ScalarNode(Kind::kNumber, "2")});
  root.entries.push_back({"zero_optimization", zero});
  Copy(plugin, "gradient_accumulation_steps", "gradient_accumulation_steps", root);
  // The plugin leaves out 0, and DeepSpeed's default then clips.
  const bool is_zero = plugin.HasNumber("gradient_clipping") &&
                       plugin.Number("gradient_clipping", NumberRange::kAny)->value == 0;
  if (!is_zero) Copy(plugin, "gradient_clipping", "gradient_clipping", root);
  if (!plugin.Has("gradient_clipping")) {
    root.entries.push_back({"gradient_clipping", ScalarNode(Kind::kText, "auto")});
  }
  if (mixed_precision != "no") {
    root.entries.push_back(
        {mixed_precision, TableNode({{"enabled", ScalarNode(Kind::kBool, "true")}})});
  }
  TrainingConfig config = ReadDeepSpeed(ConfigBlock(file.file(), root), options);
  config.kind = "Accelerate with DeepSpeed";
  return config;
}

// The plugin's own file; the plugin fills in its "auto" values.
TrainingConfig ReadPluginFile(const ConfigBlock& file, const ConfigBlock& plugin,
                              const ConfigOptions& options) {
  const auto refuse = [&](const ConfigBlock& block, std::string_view key) {
    if (!block.Has(key)) return;
    block.Refuse(key, "Accelerate refuses it together with deepspeed_config_file",
                 "its value in the DeepSpeed file alone");
  };
  refuse(file, "mixed_precision");
  for (const std::string_view key : kPluginKeys) refuse(plugin, key);
  const DeepSpeedFill fill = {};
  TrainingConfig config = ReadOwnDeepSpeed(plugin, "deepspeed_config_file", fill, options);
  config.kind = "Accelerate with DeepSpeed";
  return config;
}

bool HasFsdpPolicy(const ConfigBlock& file) {
  const ConfigNode* plugin = file.Find("fsdp_config");
  return plugin != nullptr && plugin->Find("fsdp_mixed_precision_policy") != nullptr;
}

}  // namespace

bool LooksLikeAccelerate(const ConfigBlock& file) {
  const ConfigNode& root = file.node();
  if (!HasMark(root, kAccelerateMarks)) return false;
  const ConfigNode* precision = root.Find("mixed_precision");
  const bool known = precision == nullptr || precision->text == "false" ||
                     std::ranges::count(kAcceleratePrecisions, Lowered(precision->text)) > 0;
  const ConfigNode* type = root.Find("distributed_type");
  return known && type->text != "MEGATRON_LM";
}

TrainingConfig ReadAccelerate(const ConfigBlock& file, const ConfigOptions& options) {
  if (!HasMark(file.node(), kAccelerateMarks)) {
    file.Refuse("", "nothing of Accelerate", "distributed_type and mixed_precision");
  }
  const std::string named = ReadAcceleratePrecision(file);
  // Except for the products in FP8 all is under autocast in bf16, without a loss scale.
  const std::string mixed_precision = named == "fp8" ? "bf16" : named;
  if (file.Is("distributed_type", "MEGATRON_LM")) {
    file.Refuse("distributed_type", "Megatron-LM scales the loss of this run",
                "--policy megatron --format " + mixed_precision);
  }
  if (file.Is("distributed_type", "DEEPSPEED")) {
    const std::optional<ConfigBlock> plugin = file.Table("deepspeed_config");
    TrainingConfig config = plugin && plugin->Has("deepspeed_config_file")
                                ? ReadPluginFile(file, *plugin, options)
                                : ReadPlugin(file, mixed_precision, options);
    if (named == "fp8") ReadAccelerateFp8(file, config);
    return config;
  }
  TrainingConfig config = {.kind = "Accelerate", .formats = {}, .policies = {}};
  ApplyPrecision(PrecisionNamed(mixed_precision), {"torch", {}}, config);
  if (named == "fp8") ReadAccelerateFp8(file, config);
  if (mixed_precision == "fp16") {
    config.notes.push_back(
        "GradScalerKwargs are code: PyTorch's defaults are taken, --set init_scale=... replaces "
        "them");
  }
  if (file.Is("distributed_type", "FSDP") && !config.formats.empty() && !HasFsdpPolicy(file)) {
    // Shards stay in float32, and sums have the type of the parameters.
    config.updates.formats =
        FsdpFormats(mixed_precision, mixed_precision, std::string(kFloat32Name));
  }
  config.notes.push_back(
      "clipping and accumulation are code: --max-gradient-norm and --grad-accum-steps");
  config.notes.push_back(
      "transformers' Trainer takes fp16 and bf16 of its own arguments instead of mixed_precision");
  return config;
}

}  // namespace dlsim::sim
