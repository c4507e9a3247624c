// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/config_block_text.h"

#include <fmt/format.h>

#include <cmath>

#include "sim/base/quantity.h"

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

std::string PythonText(ConfigTarget target, const ScaleParameters& parameters) {
  const std::string arguments = ScalerArguments(parameters);
  const std::string scaler = "torch.amp.GradScaler(\"cuda\", " + arguments + ")\n";
  if (target == ConfigTarget::kTorch) return "import torch\n\nscaler = " + scaler;
  if (target == ConfigTarget::kTrainer) {
    return "import torch\n\n"
           "# after trainer = Trainer(...) with fp16=True, and before trainer.train()\n"
           "trainer.accelerator.scaler = " +
           scaler;
  }
  return "from accelerate import Accelerator\n"
         "from accelerate.utils import GradScalerKwargs\n\n"
         "accelerator = Accelerator(\n"
         "    mixed_precision=\"fp16\",\n"
         "    kwargs_handlers=[GradScalerKwargs(" +
         arguments + ")],\n)\n";
}

// No stack scales the loss in bfloat16.
std::string BFloat16Text(ConfigTarget target) {
  switch (target) {
    case ConfigTarget::kModelZoo:
      return ModelZooText("bfloat16", {});
    case ConfigTarget::kDeepSpeed:
      return "{\n  \"bf16\": {\"enabled\": true}\n}\n";
    case ConfigTarget::kTorch:
      return "import torch\n\n# for the forward pass; without a GradScaler\n"
             "autocast = torch.autocast(\"cuda\", dtype=torch.bfloat16)\n";
    case ConfigTarget::kAccelerate:
      return "from accelerate import Accelerator\n\n"
             "accelerator = Accelerator(mixed_precision=\"bf16\")\n";
    case ConfigTarget::kTrainer:
      return "from transformers import TrainingArguments\n\n"
             "arguments = TrainingArguments(bf16=True)  # with those that you have\n";
  }
  return "";
}

}  // namespace

bool IsPolicyOf(ConfigTarget target, std::string_view policy) {
  switch (target) {
    case ConfigTarget::kModelZoo:
      return policy == "cerebras-2.10" || policy == "cerebras";
    case ConfigTarget::kDeepSpeed:
      return policy.starts_with("deepspeed");
    case ConfigTarget::kTorch:
    case ConfigTarget::kAccelerate:
    case ConfigTarget::kTrainer:
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
    case ConfigTarget::kAccelerate:
    case ConfigTarget::kTrainer:
      return "torch";
  }
  return "";
}

std::string_view TitleOf(ConfigTarget target) {
  switch (target) {
    case ConfigTarget::kModelZoo:
      return "Model Zoo YAML";
    case ConfigTarget::kDeepSpeed:
      return "DeepSpeed JSON, table fp16";
    case ConfigTarget::kTorch:
      return "PyTorch";
    case ConfigTarget::kAccelerate:
      return "Accelerate";
    case ConfigTarget::kTrainer:
      return "Hugging Face Trainer";
  }
  return "";
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
