// SPDX-License-Identifier: Apache-2.0
#include "sim/config/cerebras_keys.h"

#include <array>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/suggest.h"
#include "src/base/nearest_name.h"

namespace dlsim::sim {
namespace {

// A float as Python prints it; an integer as it is written.
std::string PythonText(const ConfigNumber& number) {
  const bool integer = number.text.find_first_of(".eEx") == std::string::npos;
  return integer ? number.text : PythonRepr(number.value);
}

void ReadFactor(const ConfigBlock& block, TfDynamic tf_dynamic, LossScaling& scaling) {
  constexpr std::string_view kKey = "loss_scaling_factor";
  const bool tf = tf_dynamic == TfDynamic::kKnown;
  if (block.Is(kKey, "dynamic")) {
    scaling.factor = LossScaling::Factor::kDynamic;
  } else if (tf && block.Is(kKey, "tf_dynamic")) {
    scaling.factor = LossScaling::Factor::kTfDynamic;
  } else if (const ConfigNode* value = block.Find(kKey)) {
    if (!block.HasNumber(kKey)) {
      block.Refuse(kKey, "wrong value",
                   tf ? "a number, 'dynamic' or 'tf_dynamic'" : "a number or 'dynamic'",
                   DescribeNode(*value));
    }
    scaling.static_scale = block.Number(kKey, NumberRange::kNotNegative);
  }
}

}  // namespace

std::string FormatOfHalfType(std::string_view fp16_type) {
  return fp16_type == "float16" ? "fp16" : fp16_type == "bfloat16" ? "bf16" : "cb16";
}

LossScaling ReadLossScaling(const ConfigBlock& block, TfDynamic tf_dynamic) {
  LossScaling scaling;
  ReadFactor(block, tf_dynamic, scaling);
  scaling.initial_loss_scale = block.Number("initial_loss_scale", NumberRange::kNotNegative);
  scaling.min_loss_scale = block.Number("min_loss_scale", NumberRange::kNotNegative);
  scaling.max_loss_scale = block.Number("max_loss_scale", NumberRange::kNotNegative);
  scaling.steps_per_increase = block.Integer("steps_per_increase", 1);
  return scaling;
}

void RequireOrder(const ConfigBlock& block, const LossScaling& scaling, double default_min,
                  double default_max) {
  const auto value = [](const std::optional<ConfigNumber>& number, double fallback) {
    return number && number->value != 0 ? number->value : fallback;
  };
  const double min = value(scaling.min_loss_scale, default_min);
  const double max = value(scaling.max_loss_scale, default_max);
  if (min <= max) return;
  const bool has_min = scaling.min_loss_scale && scaling.min_loss_scale->value != 0;
  if (has_min) {
    block.Refuse("min_loss_scale", "above max_loss_scale", "at most " + PythonRepr(max),
                 scaling.min_loss_scale->text);
  }
  block.Refuse("max_loss_scale", "below min_loss_scale", "at least " + PythonRepr(min),
               scaling.max_loss_scale->text);
}

Clipping ReadTorchClipping(const ConfigBlock& block) {
  const auto read = [&](std::string_view key) {
    const std::optional<ConfigNumber> limit = block.Number(key, NumberRange::kAny);
    if (limit && !(limit->value > 0)) {
      block.Refuse("", std::string(key) + " has to be a positive float. Got " + PythonText(*limit));
    }
    return limit;
  };
  const std::optional<ConfigNumber> norm = read("max_gradient_norm");
  const std::optional<ConfigNumber> value = read("max_gradient_value");
  if (norm && value) {
    block.Refuse("", "Gradients can be clipped by norm(=" + PythonText(*norm) +
                         ") or by value(=" + PythonText(*value) +
                         "), but not both. Do not set both `max_gradient_norm` and "
                         "`max_gradient_value`.");
  }
  Clipping clipping;
  if (norm) clipping.max_norm = norm->value;
  if (value) clipping.max_value = value->value;
  return clipping;
}

void AddSetting(ConfigPolicy& policy, std::string_view key,
                const std::optional<ConfigNumber>& value) {
  if (value) policy.settings.push_back(std::string(key) + "=" + value->text);
}

ConfigPolicy CerebrasScaler(const LossScaling& scaling, std::string_view fp16_type) {
  ConfigPolicy policy = {"cerebras-2.10", {}};
  policy.settings.push_back("fp16_type=" + std::string(fp16_type));
  if (!scaling.dynamic()) {
    policy.settings.push_back("loss_scale=" +
                              (scaling.static_scale ? scaling.static_scale->text : "1"));
    return policy;
  }
  AddSetting(policy, "init_scale", scaling.initial_loss_scale);
  if (scaling.steps_per_increase) {
    policy.settings.push_back("steps_per_increase=" + std::to_string(*scaling.steps_per_increase));
  }
  AddSetting(policy, "min_loss_scale", scaling.min_loss_scale);
  AddSetting(policy, "max_loss_scale", scaling.max_loss_scale);
  return policy;
}

ConfigPolicy GpuScaler(const LossScaling& scaling, std::string_view default_init,
                       std::vector<std::string>& notes) {
  ConfigPolicy policy = {"torch", {}};
  if (!scaling.dynamic()) {
    policy.settings = {"init_scale=" + (scaling.static_scale ? scaling.static_scale->text : "1"),
                       "growth_interval=9223372036854775807"};
    notes.push_back(
        "the static loss scale is a torch GradScaler that never grows: an overflow halves it for "
        "good");
    return policy;
  }
  policy.settings = {
      "init_scale=" + (scaling.initial_loss_scale ? scaling.initial_loss_scale->text
                                                  : std::string(default_init)),
      "growth_interval=" + std::to_string(scaling.steps_per_increase.value_or(2000))};
  if (scaling.min_loss_scale || scaling.max_loss_scale) {
    notes.push_back("min_loss_scale and max_loss_scale have no effect outside CSX");
  }
  return policy;
}

bool ReadMixedPrecision(const ConfigBlock& file) {
  for (const std::string_view name : {"model", "training"}) {
    const std::optional<ConfigBlock> block = file.Table(name);
    const std::optional<bool> mixed = block ? block->Bool("mixed_precision") : std::nullopt;
    if (mixed) return *mixed;
  }
  return false;
}

bool ReadUseCbfloat16(const ConfigBlock& file, bool mixed_precision) {
  const std::optional<ConfigBlock> csconfig = file.Table("csconfig");
  if (!csconfig || !csconfig->Bool("use_cbfloat16").value_or(false)) return false;
  if (mixed_precision) return true;
  csconfig->Refuse("use_cbfloat16",
                   "use_cbfloat16=True can only be used in mixed precision mode. Set "
                   "mixed_precision to True.");
}

ConfigPolicy NoScaler() { return {"static", {"loss_scale=1"}}; }

std::optional<Backend> ReadBackend(const ConfigBlock& block, std::string_view key) {
  const std::optional<std::string> name = block.Text(key);
  if (!name) return std::nullopt;
  for (const auto& known : EnumNames(Backend{})) {
    if (EqualsIgnoringCase(known.name, *name)) return known.value;
  }
  constexpr std::array<std::string_view, 3> kNames = {"CSX", "GPU", "CPU"};
  block.Refuse(key, WithSuggestion("unknown name", *name, kNames), OneOf(kNames), Quoted(*name));
}

}  // namespace dlsim::sim
