// SPDX-License-Identifier: Apache-2.0
// Compared with transformers 5.24.0, training_args.py and trainer_optimizer.py; accelerate 1.15.0,
// utils/fsdp_utils.py; PEFT and LLaMA-Factory, which keep what they train in float32.
#include "sim/config/hf_updates.h"

#include <algorithm>
#include <array>

#include "sim/config/fsdp_types.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

// Keys with these parts say that other weights are trained than those that are loaded.
constexpr std::array<std::string_view, 6> kOtherWeights = {"lora",     "peft",  "quant",
                                                           "load_in_", "badam", "finetuning_type"};

// Adam whose states have the format of the weights.
constexpr std::array<std::string_view, 3> kTorchAdam = {"adamw_torch", "adamw_torch_fused",
                                                        "adamw_hf"};

bool TrainsOtherWeights(const ConfigBlock& arguments) {
  return std::ranges::any_of(arguments.node().entries, [](const ConfigEntry& entry) {
    const bool is_stage = entry.key == "stage";  // LLaMA-Factory's, with LoRA by default
    return is_stage || std::ranges::any_of(kOtherWeights, [&](std::string_view part) {
             return entry.key.find(part) != entry.key.npos;
           });
  });
}

bool IsTorchAdam(const ClearKeys& keys) {
  if (!keys.Has("optim")) return true;
  return std::ranges::count(kTorchAdam, keys.Text("optim").value_or("")) > 0;
}

// The type that the model is loaded in.
std::optional<std::string> LoadedType(const ClearKeys& keys) {
  if (keys.Switch("pure_bf16") == true) return "bf16";
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    if (keys.Has(key)) return keys.FormatOr(key, std::nullopt);
  }
  return std::nullopt;
}

// Accelerate gives FSDP float32 shards in mixed precision, and sums in its type; without it the
// loaded type, which may be another, decides.
UpdateRules FsdpRules(Precision precision) {
  if (precision == Precision::kFloat32) return {};
  const std::string type = precision == Precision::kFp16 ? "fp16" : "bf16";
  return {.formats = FsdpFormats(type, type, std::string(kFloat32Name)), .settings = {}};
}

}  // namespace

// The trainers have defaults of their own for the learning rate.
UpdateSettings TrainerAdam(const ConfigBlock& arguments) {
  const ClearKeys keys(arguments);
  return {.lr = keys.Number("learning_rate"),
          .beta1 = keys.NumberOr("adam_beta1", 0.9),
          .beta2 = keys.NumberOr("adam_beta2", 0.999),
          .eps = keys.NumberOr("adam_epsilon", 1e-8),
          .weight_decay = keys.NumberOr("weight_decay", 0.0),
          .decoupled = true};
}

UpdateRules ReadHfUpdates(const ConfigBlock& arguments, Precision precision) {
  const ClearKeys keys(arguments);
  if (TrainsOtherWeights(arguments)) return {};
  if (keys.Has("fsdp") && keys.Switch("fsdp") != false) return FsdpRules(precision);
  const std::optional<std::string> loaded = LoadedType(keys);
  const bool autocast_fp16 = precision == Precision::kFp16;
  // Weights in fp16 with a gradient scaler are refused by torch.
  if (autocast_fp16 || (precision == Precision::kBf16 && loaded == "fp16")) return {};
  UpdateRules rules;
  rules.formats.weights = loaded;
  if (IsTorchAdam(keys)) rules.settings = TrainerAdam(arguments);
  return rules;
}

}  // namespace dlsim::sim
