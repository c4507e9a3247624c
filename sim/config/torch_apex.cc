// SPDX-License-Identifier: Apache-2.0
// The keyword arguments of torch.amp.GradScaler and of apex.amp.initialize, as TOML or JSON.
#include <array>

#include "sim/base/quantity.h"
#include "sim/config/cerebras_keys.h"
#include "sim/config/dialects.h"

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 6> kGradScalerKeys = {
    "device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"};
constexpr std::array<std::string_view, 12> kApexKeys = {"enabled",
                                                        "opt_level",
                                                        "cast_model_type",
                                                        "patch_torch_functions",
                                                        "keep_batchnorm_fp32",
                                                        "master_weights",
                                                        "loss_scale",
                                                        "cast_model_outputs",
                                                        "num_losses",
                                                        "verbosity",
                                                        "min_loss_scale",
                                                        "max_loss_scale"};
constexpr std::array<std::string_view, 4> kOptLevels = {"O0", "O1", "O2", "O3"};
constexpr std::array<std::string_view, 3> kGradScalerNames = {
    "torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "GradScaler"};
constexpr std::array<std::string_view, 3> kApexNames = {"apex.amp.initialize", "apex.amp", "apex"};

bool IsTable(const ConfigNode* node) {
  return node != nullptr && node->kind == ConfigNode::Kind::kTable;
}

// Returns the table of a dotted name, whether its parts are nested or one key.
std::optional<ConfigBlock> FindDotted(const ConfigBlock& block, std::string_view name) {
  if (IsTable(block.Find(name))) return block.Table(name);
  for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
    if (!IsTable(block.Find(name.substr(0, dot)))) continue;
    const std::optional<ConfigBlock> outer = block.Table(name.substr(0, dot));
    if (auto inner = FindDotted(*outer, name.substr(dot + 1))) return inner;
  }
  return std::nullopt;
}

std::optional<ConfigBlock> FindAny(const ConfigBlock& file,
                                   std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    if (auto block = FindDotted(file, name)) return block;
  }
  return std::nullopt;
}

// The keys next to the table: dtype, max_norm, clip_value and grad_accum_steps.
void ReadSurroundings(const ConfigBlock& file, TrainingConfig& config) {
  if (const std::optional<std::string> format = ReadFormat(file, "dtype")) {
    config.formats = {*format};
  }
  const auto norm = file.Number("max_norm", NumberRange::kPositive);
  const auto value = file.Number("clip_value", NumberRange::kPositive);
  if (norm && value) file.Refuse("clip_value", "clips a second time", "max_norm or clip_value");
  if (norm) config.clipping.max_norm = norm->value;
  if (value) config.clipping.max_value = value->value;
  config.grad_accum_steps = file.Integer("grad_accum_steps", 1);
}

std::string ApexDefaultScale(const std::string& opt_level) {
  return opt_level == "O1" || opt_level == "O2" ? "dynamic" : "1";
}

// Returns "dynamic" or a number.
std::string ReadApexScale(const ConfigBlock& block, const std::string& opt_level) {
  const ConfigNode* value = block.Find("loss_scale");
  if (value == nullptr) return ApexDefaultScale(opt_level);
  if (block.HasNumber("loss_scale")) {
    return block.Number("loss_scale", NumberRange::kPositive)->text;
  }
  if (block.Is("loss_scale", "dynamic")) return "dynamic";
  block.Refuse("loss_scale", "wrong value", "a number or 'dynamic'", DescribeNode(*value));
}

ConfigPolicy ApexScaler(const ConfigBlock& block, const std::string& opt_level) {
  const std::string scale = ReadApexScale(block, opt_level);
  const auto min = block.Number("min_loss_scale", NumberRange::kNotNegative);
  const auto max = block.Number("max_loss_scale", NumberRange::kPositive);
  const double ceiling = max ? max->value : 0x1p24;
  if (min && min->value > ceiling) {
    block.Refuse("min_loss_scale", "above max_loss_scale", "at most " + PythonRepr(ceiling),
                 min->text);
  }
  if (scale != "dynamic") return {"static", {"loss_scale=" + scale}};
  ConfigPolicy policy = {"apex", {}};
  AddSetting(policy, "min_loss_scale", min);
  AddSetting(policy, "max_loss_scale", max);
  return policy;
}

}  // namespace

bool LooksLikeTorch(const ConfigBlock& file) { return FindAny(file, kGradScalerNames).has_value(); }

TrainingConfig ReadTorch(const ConfigBlock& file, const ConfigOptions&) {
  TrainingConfig config = {.kind = "torch GradScaler", .formats = {}, .policies = {}};
  const std::optional<ConfigBlock> block = FindAny(file, kGradScalerNames);
  if (!block) file.Refuse("", "no table torch.amp.GradScaler");
  block->RequireKnown(kGradScalerKeys);
  block->Text("device");
  ConfigPolicy policy = {"torch", {}};
  AddSetting(policy, "init_scale", block->Number("init_scale", NumberRange::kPositive));
  AddSetting(policy, "growth_factor", block->Number("growth_factor", NumberRange::kPositive));
  AddSetting(policy, "backoff_factor", block->Number("backoff_factor", NumberRange::kNotNegative));
  if (const auto interval = block->Integer("growth_interval", 1)) {
    policy.settings.push_back("growth_interval=" + std::to_string(*interval));
  }
  if (const auto enabled = block->Bool("enabled")) {
    policy.settings.push_back(std::string("enabled=") + (*enabled ? "true" : "false"));
  }
  config.policies = {policy};
  ReadSurroundings(file, config);
  return config;
}

bool LooksLikeApex(const ConfigBlock& file) { return FindAny(file, kApexNames).has_value(); }

TrainingConfig ReadApex(const ConfigBlock& file, const ConfigOptions&) {
  TrainingConfig config = {.kind = "Apex amp", .formats = {}, .policies = {}};
  const std::optional<ConfigBlock> block = FindAny(file, kApexNames);
  if (!block) file.Refuse("", "no table apex.amp");
  block->RequireKnown(kApexKeys);
  const std::string opt_level = block->Choice("opt_level", kOptLevels).value_or("O1");
  const bool enabled = block->Bool("enabled").value_or(true);
  if (enabled && opt_level != "O0") config.formats = {"fp16"};
  const ConfigPolicy policy = ApexScaler(*block, opt_level);
  config.policies = {enabled ? policy : NoScaler()};
  if (!enabled) config.notes.push_back("enabled false: no mixed precision and no loss scaling");
  if (enabled && opt_level == "O0") {
    config.notes.push_back("opt_level O0: this run computes in float32");
  }
  ReadSurroundings(file, config);
  return config;
}

}  // namespace dlsim::sim
