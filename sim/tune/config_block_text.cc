// SPDX-License-Identifier: Apache-2.0
#include "sim/tune/config_block_text.h"

#include <fmt/format.h>

#include <cmath>

#include "sim/tune/policy_family.h"

namespace dlsim::sim {
namespace {

// A number that YAML, TOML and Python all read as a floating-point one.
std::string Floating(double value) {
  const std::string text = ScaleNumber(value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string ModelZooText(const std::string& type, const ScaleParameters& parameters) {
  const std::string head = "trainer:\n  init:\n    precision:\n      fp16_type: " + type + "\n";
  if (type == "bfloat16") return head;  // nothing else has an effect
  return head + fmt::format(
                    "      loss_scaling_factor: dynamic\n"
                    "      initial_loss_scale: {}\n"
                    "      steps_per_increase: {}\n"
                    "      min_loss_scale: {}\n"
                    "      max_loss_scale: {}\n",
                    Floating(parameters.init), parameters.interval, Floating(parameters.min),
                    Floating(parameters.max));
}

// The table fp16 alone, so that pasting it changes no other key of the user's file. DeepSpeed's
// scaler is that of ZeRO, whatever the stage; without ZeRO it has another, which knows no
// hysteresis.
std::string DeepSpeedText(const PolicyChoice& choice) {
  const ScaleParameters& parameters = choice.score.parameters;
  const bool zero = choice.family.policy->name == "deepspeed";
  return fmt::format(
      "{{\n  \"fp16\": {{\n"
      "    \"enabled\": true,\n"
      "    \"loss_scale\": 0,\n"
      "    \"initial_scale_power\": {},\n"
      "    \"loss_scale_window\": {},\n"
      "{}    \"min_loss_scale\": {}\n"
      "  }}\n}}\n",
      std::lround(std::log2(parameters.init)), parameters.interval,
      zero ? fmt::format("    \"hysteresis\": {},\n", parameters.hysteresis) : "",
      ScaleNumber(parameters.min));
}

std::string TorchText(const ScaleParameters& parameters) {
  const std::string init = Floating(parameters.init);
  return fmt::format(
      "# scaler = torch.amp.GradScaler(init_scale={0}, growth_interval={1})\n"
      "dtype = \"float16\"\n\n"
      "[torch.amp.GradScaler]\n"
      "init_scale = {0}\n"
      "growth_interval = {1}\n",
      init, parameters.interval);
}

}  // namespace

bool IsPolicyOf(ConfigTarget target, std::string_view policy) {
  switch (target) {
    case ConfigTarget::kModelZoo:
      return policy == "cerebras-2.10" || policy == "cerebras";
    case ConfigTarget::kDeepSpeed:
      return policy.starts_with("deepspeed");
    case ConfigTarget::kTorch:
      return policy == "torch";
  }
  return false;
}

std::string_view PolicyOf(ConfigTarget target) {
  switch (target) {
    case ConfigTarget::kModelZoo:
      return "cerebras-2.10";
    case ConfigTarget::kDeepSpeed:
      return "deepspeed";
    case ConfigTarget::kTorch:
      return "torch";
  }
  return "";
}

std::optional<std::string> ConfigText(ConfigTarget target, const FormatTuning& tuning) {
  const std::string& format = tuning.format;
  if (format == "bf16" && target == ConfigTarget::kDeepSpeed) {
    return "{\n  \"bf16\": {\"enabled\": true}\n}\n";
  }
  if (format == "bf16" && target == ConfigTarget::kTorch) {
    return "# bfloat16 needs no torch.amp.GradScaler\ndtype = \"bfloat16\"\n\n"
           "[torch.amp.GradScaler]\nenabled = false\n";
  }
  const bool zoo = target == ConfigTarget::kModelZoo;
  if (zoo && format == "bf16") return ModelZooText("bfloat16", {});
  for (const PolicyChoice& choice : tuning.choices) {
    if (!IsPolicyOf(target, choice.family.policy->name)) continue;
    const ScaleParameters& parameters = choice.score.parameters;
    if (zoo && format == "cb16") return ModelZooText("cbfloat16", parameters);
    if (format != "fp16") return std::nullopt;
    if (zoo) return ModelZooText("float16", parameters);
    return target == ConfigTarget::kTorch ? TorchText(parameters) : DeepSpeedText(choice);
  }
  return std::nullopt;
}

}  // namespace dlsim::sim
