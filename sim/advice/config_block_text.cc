// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/config_block_text.h"

#include <fmt/format.h>

#include <cmath>

#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

// What there is to say of a stack, in the order of ConfigTarget.
struct TargetRow {
  std::string_view title, policy;
};
constexpr TargetRow kTargets[] = {{"Model Zoo YAML", "cerebras-2.10"},
                                  {"DeepSpeed JSON, table fp16", "deepspeed"},
                                  {"PyTorch", "torch"},
                                  {"Accelerate", "torch"},
                                  {"Hugging Face Trainer", "torch"},
                                  {"Lightning", "torch"}};

const TargetRow& RowOf(ConfigTarget target) { return kTargets[static_cast<size_t>(target)]; }

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
  const ScaleParameters& parameters = choice.parameters;
  const bool zero = choice.policy->name == "deepspeed";
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

// The scaler by keyword arguments, which its own class and Accelerate's share.
std::string ScalerArguments(const ScaleParameters& parameters) {
  return fmt::format("init_scale={}, growth_interval={}", Floating(parameters.init),
                     parameters.interval);
}

// The autocast whose lists the verdict is about, on the device of the user's model.
std::string AutocastText(std::string_view dtype, std::string_view comment) {
  return fmt::format(
      "import torch\n\n"
      "device = next(model.parameters()).device.type\n"
      "# judged by the lists of CUDA's autocast; those of the CPU differ\n"
      "autocast = torch.autocast(device, dtype=torch.{})  # for the forward pass{}\n",
      dtype, comment);
}

std::string PythonText(ConfigTarget target, const ScaleParameters& parameters) {
  const std::string arguments = ScalerArguments(parameters);
  switch (target) {
    case ConfigTarget::kTorch:
      return AutocastText("float16", "") + "scaler = torch.amp.GradScaler(device, " + arguments +
             ")\n";
    case ConfigTarget::kTrainer:
      return "import torch\n\n"
             "# after trainer = Trainer(...) with fp16=True, and before trainer.train()\n"
             "device = trainer.accelerator.device.type\n"
             "trainer.accelerator.scaler = torch.amp.GradScaler(device, " +
             arguments + ")\n";
    case ConfigTarget::kLightning:  // which has no fp16 on the CPU
      return "import torch\n"
             "from lightning.pytorch import Trainer\n"
             "from lightning.pytorch.plugins import MixedPrecision\n\n"
             "scaler = torch.amp.GradScaler(\"cuda\", " +
             arguments +
             ")\n"
             "precision = MixedPrecision(\"16-mixed\", \"cuda\", scaler)\n"
             "trainer = Trainer(plugins=[precision])  # with the arguments that you have\n";
    default:
      return "from accelerate import Accelerator\n"
             "from accelerate.utils import GradScalerKwargs\n\n"
             "accelerator = Accelerator(\n"
             "    mixed_precision=\"fp16\",\n"
             "    kwargs_handlers=[GradScalerKwargs(" +
             arguments + ")],\n)\n";
  }
}

// No stack scales the loss in bfloat16.
std::string BFloat16Text(ConfigTarget target) {
  switch (target) {
    case ConfigTarget::kModelZoo:
      return ModelZooText("bfloat16", {});
    case ConfigTarget::kDeepSpeed:
      return "{\n  \"bf16\": {\"enabled\": true}\n}\n";
    case ConfigTarget::kTorch:
      return AutocastText("bfloat16", "; without a GradScaler");
    case ConfigTarget::kAccelerate:
      return "from accelerate import Accelerator\n\n"
             "accelerator = Accelerator(mixed_precision=\"bf16\")\n";
    case ConfigTarget::kTrainer:
      return "from transformers import TrainingArguments\n\n"
             "arguments = TrainingArguments(bf16=True)  # with those that you have\n";
    case ConfigTarget::kLightning:
      return "from lightning.pytorch import Trainer\n\n"
             "trainer = Trainer(precision=\"bf16-mixed\")  # with the arguments that you have\n";
  }
  return "";
}

}  // namespace

std::string_view TitleOf(ConfigTarget target) { return RowOf(target).title; }

std::string_view PolicyOf(ConfigTarget target) { return RowOf(target).policy; }

// DeepSpeed has two policies of its name, and Cerebras another as documented.
bool IsPolicyOf(ConfigTarget target, std::string_view policy) {
  return policy == PolicyOf(target) ||
         (target == ConfigTarget::kModelZoo && policy == "cerebras") ||
         (target == ConfigTarget::kDeepSpeed && policy.starts_with("deepspeed"));
}

std::optional<std::string> ConfigText(ConfigTarget target, const FormatTuning& tuning) {
  const std::string& format = tuning.format;
  if (format == "bf16") return BFloat16Text(target);
  const bool zoo = target == ConfigTarget::kModelZoo;
  for (const PolicyChoice& choice : tuning.choices) {
    if (!IsPolicyOf(target, choice.policy->name)) continue;
    const ScaleParameters& parameters = choice.parameters;
    if (zoo && format == "cb16") return ModelZooText("cbfloat16", parameters);
    if (format != "fp16") return std::nullopt;
    if (zoo) return ModelZooText("float16", parameters);
    return target == ConfigTarget::kDeepSpeed ? DeepSpeedText(choice)
                                              : PythonText(target, parameters);
  }
  return std::nullopt;
}

}  // namespace dlsim::sim
