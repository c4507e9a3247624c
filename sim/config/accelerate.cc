// SPDX-License-Identifier: Apache-2.0
// Hugging Face Accelerate's YAML, which `accelerate config` writes.
// Source: huggingface/accelerate, accelerator.py and utils/dataclasses.py.
#include <algorithm>
#include <array>

#include "dlsim/error.h"
#include "sim/config/arguments.h"
#include "sim/config/cerebras_keys.h"
#include "sim/config/deepspeed_file.h"
#include "sim/config/dialects.h"
#include "sim/config/half_precision.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

constexpr std::array<std::string_view, 2> kAccelerateMarks = {
    "distributed_type mixed_precision", "distributed_type compute_environment"};
constexpr std::array<std::string_view, 3> kAcceleratePrecisions = {"no", "fp16", "bf16"};

// YAML reads an unquoted `no` as false.
std::string ReadAcceleratePrecision(const ConfigBlock& file) {
  const ConfigNode* value = file.Find("mixed_precision");
  if (value == nullptr || value->text == "false") return "no";
  return *file.Choice("mixed_precision", kAcceleratePrecisions);
}

Precision PrecisionNamed(std::string_view name) {
  return name == "fp16"   ? Precision::kFp16
         : name == "bf16" ? Precision::kBf16
                          : Precision::kFloat32;
}

// Copies a setting of the plugin under DeepSpeed's own name.
void Copy(const ConfigBlock& plugin, std::string_view key, std::string_view name,
          ConfigNode& table) {
  if (const ConfigNode* value = plugin.Find(key)) {
    table.entries.push_back({std::string(name), *value});
  }
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
  Copy(plugin, "gradient_clipping", "gradient_clipping", root);
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
TrainingConfig ReadPluginFile(const ConfigBlock& plugin, const std::string& mixed_precision,
                              const ConfigOptions& options) {
  const DeepSpeedFill fill = {PrecisionNamed(mixed_precision), {}, {}};
  TrainingConfig config = ReadOwnDeepSpeed(plugin, "deepspeed_config_file", fill, options);
  config.kind = "Accelerate with DeepSpeed";
  return config;
}

}  // namespace

bool LooksLikeAccelerate(const ConfigBlock& file) {
  const ConfigNode& root = file.node();
  if (!HasMark(root, kAccelerateMarks)) return false;
  const ConfigNode* precision = root.Find("mixed_precision");
  const bool known =
      precision == nullptr || precision->text == "false" ||
      std::ranges::find(kAcceleratePrecisions, precision->text) != kAcceleratePrecisions.end();
  const ConfigNode* type = root.Find("distributed_type");
  return known && type->text != "MEGATRON_LM";
}

TrainingConfig ReadAccelerate(const ConfigBlock& file, const ConfigOptions& options) {
  if (!HasMark(file.node(), kAccelerateMarks)) {
    file.Refuse("", "nothing of Accelerate", "distributed_type and mixed_precision");
  }
  const std::string mixed_precision = ReadAcceleratePrecision(file);
  if (file.Is("distributed_type", "MEGATRON_LM")) {
    file.Refuse("distributed_type", "Megatron-LM scales the loss of this run",
                "--policy megatron --format " + mixed_precision);
  }
  if (file.Is("distributed_type", "DEEPSPEED")) {
    const std::optional<ConfigBlock> plugin = file.Table("deepspeed_config");
    return plugin && plugin->Has("deepspeed_config_file")
               ? ReadPluginFile(*plugin, mixed_precision, options)
               : ReadPlugin(file, mixed_precision, options);
  }
  TrainingConfig config = {.kind = "Accelerate", .formats = {}, .policies = {}};
  ApplyPrecision(PrecisionNamed(mixed_precision), {"torch", {}}, config);
  if (mixed_precision == "fp16") {
    config.notes.push_back(
        "GradScalerKwargs are code: PyTorch's defaults are taken, --set init_scale=... replaces "
        "them");
  }
  config.notes.push_back(
      "clipping and accumulation are code: --max-gradient-norm and --grad-accum-steps");
  config.notes.push_back(
      "transformers' Trainer takes fp16 and bf16 of its own arguments instead of mixed_precision");
  return config;
}

}  // namespace dlsim::sim
