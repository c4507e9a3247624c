// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's arguments: a command line, or MODEL_ARGS of its test cases in YAML.
// Compared with megatron-core 0.19.2 of NVIDIA/Megatron-LM: megatron/training/arguments.py and
// megatron/core/optimizer.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "dlsim/error.h"
#include "sim/config/arguments.h"
#include "sim/config/deepspeed_file.h"
#include "sim/config/dialects.h"
#include "sim/config/half_precision.h"
#include "sim/config/scaled_recipes.h"
#include "sim/config/shell_script.h"

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 11> kMegatronMarks = {
    "MODEL_ARGS.--train-iters",
    "MODEL_ARGS.--train-samples",
    "MODEL_ARGS.--lr",
    "--num-layers --hidden-size",
    "--initial-loss-scale",
    "--loss-scale-window",
    "--micro-batch-size --train-iters",
    "--micro-batch-size --train-samples",
    "--use-precision-aware-optimizer",
    "--grad-reduce-in-bf16",
    "--accumulate-allreduce-grads-in-fp32"};

constexpr std::array<std::string_view, 8> kMegatronKeys = {
    "fp16",           "bf16",      "loss_scale",        "initial_loss_scale",
    "min_loss_scale", "clip_grad", "loss_scale_window", "hysteresis"};

constexpr std::string_view kNeverGrows = "9223372036854775807";

// ConstantGradScaler: overflows skip their step, the scale stays.
ConfigPolicy ConstantScaler(const ConfigNumber& scale) {
  return {"megatron",
          {"initial_scale=" + scale.text, "min_scale=" + scale.text, "hysteresis=1",
           "growth_interval=" + std::string(kNeverGrows)}};
}

ConfigPolicy DynamicScaler(const ConfigBlock& arguments) {
  ConfigPolicy policy = {"megatron", {}};
  const auto number = [&](std::string_view key, std::string_view parameter) {
    const auto value = arguments.Number(key, NumberRange::kPositive);
    if (value) policy.settings.push_back(std::string(parameter) + "=" + value->text);
  };
  number("initial_loss_scale", "initial_scale");
  number("min_loss_scale", "min_scale");
  const auto window = arguments.Number("loss_scale_window", NumberRange::kPositive);
  if (window) {
    // A float in the original, which no count of steps equals if it has a fraction.
    const bool whole = window->value == std::trunc(window->value);
    policy.settings.push_back("growth_interval=" +
                              (whole ? std::to_string(*arguments.Integer("loss_scale_window", 1))
                                     : std::string(kNeverGrows)));
  }
  const auto hysteresis = arguments.Integer("hysteresis", 1);
  if (hysteresis) policy.settings.push_back("hysteresis=" + std::to_string(*hysteresis));
  return policy;
}

// Values without effect may be anything.
void ReadScaler(const ConfigBlock& arguments, TrainingConfig& config) {
  const Precision precision = ReadSwitches(arguments, "fp16", "bf16");
  const bool half = precision != Precision::kFloat32;
  const auto constant =
      arguments.Number("loss_scale", half ? NumberRange::kNotNegative : NumberRange::kAny);
  arguments.Integer("hysteresis", std::numeric_limits<int64_t>::min());  // in any case
  const bool is_constant = half && constant && constant->value != 0;
  const bool dynamic = precision == Precision::kFp16 && !is_constant;
  ApplyPrecision(precision, dynamic ? DynamicScaler(arguments) : ConfigPolicy{"megatron", {}},
                 config);
  if (!is_constant) return;
  config.policies = {ConstantScaler(*constant)};
  config.notes.assign({"loss_scale " + constant->text +
                       " is constant: a megatron scaler that cannot grow nor fall"});
}

// A type of the precision-aware optimizer. Transformer Engine scales states in fp16 and fp8, which
// are then no plain numbers of their format.
std::optional<std::string> AwareType(const ClearKeys& keys, std::string_view key) {
  const std::optional<std::string> type = keys.FormatOr(key, std::string(kFloat32Name));
  return type == "fp16" ? std::nullopt : type;
}

// Gradients and their sums over ranks: float32 in bf16 unless something asks for less, and the
// parameters' own type in fp16 unless something asks for more.
std::optional<std::string> GradientType(const ClearKeys& keys, const std::string& type) {
  for (const std::string_view other : {"use_megatron_fsdp", "use_torch_fsdp2"}) {
    if (keys.Has(other)) return std::nullopt;
  }
  const auto wide = keys.Switch("accumulate_allreduce_grads_in_fp32");
  const auto narrow = keys.Switch("grad_reduce_in_bf16");
  const auto main = keys.FormatOr("main_grads_dtype", std::string(kFloat32Name));
  if (!wide || !narrow || !main) return std::nullopt;
  if (type == "fp16") return *wide ? std::string(kFloat32Name) : type;
  const bool reduces_narrow = *narrow || (!*wide && *main != kFloat32Name);
  return reduces_narrow ? type : std::string(kFloat32Name);
}

UpdateSettings MegatronAdam(const ClearKeys& keys) {
  return {.lr = keys.Number("lr"),
          .beta1 = keys.NumberOr("adam_beta1", 0.9),
          .beta2 = keys.NumberOr("adam_beta2", 0.999),
          .eps = keys.NumberOr("adam_eps", 1e-8),
          .weight_decay = keys.NumberOr("weight_decay", 0.01),
          .decoupled = true};
}

UpdateRules MegatronUpdates(const ConfigBlock& arguments, const std::string& type) {
  const ClearKeys keys(arguments);
  UpdateRules rules = {.formats = MasterFormats(type), .settings = {}};
  UpdateFormats& formats = rules.formats;
  formats.gradients = formats.reduce = GradientType(keys, type);
  const bool adam = !keys.Has("optimizer") || keys.Text("optimizer") == "adam";
  const std::optional<bool> aware = keys.Switch("use_precision_aware_optimizer");
  if (!adam || !aware || keys.Has("optimizer_cpu_offload")) {
    formats.first = formats.second = std::nullopt;
    if (!aware) formats.master = std::nullopt;
    return rules;
  }
  rules.settings = MegatronAdam(keys);
  if (!*aware) return rules;
  formats.master = AwareType(keys, "main_params_dtype");
  formats.first = AwareType(keys, "exp_avg_dtype");
  formats.second = AwareType(keys, "exp_avg_sq_dtype");
  return rules;
}

// The number of ranks is not in the file.
void NoteMicroSteps(const ConfigBlock& arguments, TrainingConfig& config) {
  if (!arguments.Has("global_batch_size")) return;
  config.notes.push_back(
      "training accumulates global-batch-size / (micro-batch-size x data-parallel ranks) "
      "micro-steps, which the file does not say: --grad-accum-steps where a trace has them apart");
}

// A checkpoint that is loaded to generate, to evaluate or to be converted.
void RefuseWithoutTraining(const ConfigBlock& arguments) {
  constexpr std::array<std::string_view, 8> kOfTraining = {
      "lr",     "train_iters",        "train_samples",     "epochs",
      "min_lr", "initial_loss_scale", "global_batch_size", "optimizer"};
  const auto given = [&](std::string_view key) { return arguments.Has(key); };
  const bool only_loads = arguments.Has("load") && std::ranges::none_of(kOfTraining, given);
  if (!only_loads && !arguments.Is("mode", "inference")) return;
  arguments.Refuse("", "a run without training", "--lr with --train-iters or --train-samples");
}

// The format of products in Transformer Engine's layers; empty without one.
std::string ReadScaledFormat(const ConfigBlock& arguments, std::vector<std::string>& notes) {
  constexpr std::array<std::string_view, 2> kElements = {"e4m3", "hybrid"};
  constexpr std::array<std::string_view, 2> kFp4Recipes = {"nvfp4", "custom"};
  if (arguments.Has("fp4_format")) {
    if (arguments.Choice("fp4_recipe", kFp4Recipes).value_or("nvfp4") != "nvfp4") {
      notes.push_back("fp4_recipe custom is not simulated: it is code");
      return "";
    }
    notes.push_back(
        "nvfp4 without the stochastic rounding and the rotations of the recipe: it loses more "
        "here");
    return "nvfp4";
  }
  const std::optional<std::string> elements = arguments.Choice("fp8_format", kElements);
  return elements ? MegatronFp8(arguments, *elements, notes) : "";
}

}  // namespace

bool LooksLikeMegatron(const ConfigBlock& file) { return HasMark(file.node(), kMegatronMarks); }

TrainingConfig ReadMegatron(const ConfigBlock& file, const ConfigOptions& options) {
  TrainingConfig config = {.kind = "Megatron-LM", .formats = {}, .policies = {}};
  const std::optional<ConfigBlock> model = file.Table("MODEL_ARGS");
  if (!model && !IsCommandLine(file.node())) {
    file.Refuse("", "no arguments of Megatron-LM", "a command line, or MODEL_ARGS");
  }
  const ConfigNode table = ArgumentTable(model ? model->node() : file.node());
  const ConfigBlock arguments(file.file(), table);
  if (!model) RefuseWithoutTraining(arguments);
  const ConfigNode* deepspeed = arguments.Find("deepspeed_config");
  if (arguments.Has("deepspeed") && deepspeed && deepspeed->kind == ConfigNode::Kind::kTable) {
    config = ReadDeepSpeed(ConfigBlock(file.file(), *deepspeed), options);
    config.kind = "Megatron-LM with DeepSpeed";
    return config;
  }
  if (arguments.Has("deepspeed")) RefuseDeepSpeedRun(arguments);
  ReadScaler(arguments, config);
  if (!config.formats.empty()) config.updates = MegatronUpdates(arguments, config.formats[0]);
  AddNotes(arguments.NoteMisspelt(kMegatronKeys), config.notes);
  ReadNormLimit(arguments, "clip_grad", 1.0, config);
  NoteMicroSteps(arguments, config);
  config.scaled = ReadScaledFormat(arguments, config.notes);
  return config;
}

}  // namespace dlsim::sim
