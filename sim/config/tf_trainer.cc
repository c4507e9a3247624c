// SPDX-License-Identifier: Apache-2.0
// The parameters of the Cerebras Model Zoo's TensorFlow Trainer, in `optimizer`.
// Source: Cerebras/modelzoo, common/tf/optimizers/Trainer.py.
#include <algorithm>
#include <array>
#include <cmath>

#include "sim/base/number.h"
#include "sim/config/cerebras_keys.h"
#include "sim/config/dialects.h"

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 9> kTfScalerKeys = {
    "loss_scaling_factor", "initial_loss_scale", "steps_per_increase",
    "min_loss_scale",      "max_loss_scale",     "overflow_tolerance",
    "max_gradient_norm",   "max_gradient_value", "grad_accum_steps"};

constexpr std::array<std::string_view, 4> kTfFileKeys = {"optimizer", "model", "csconfig",
                                                         "runconfig"};
constexpr std::array<std::string_view, 1> kTfModelKeys = {"mixed_precision"};

// Only PyTorch's runs and models read these.
constexpr std::array<std::string_view, 6> kPytorchPaths = {
    "runconfig.log_steps", "runconfig.checkpoint_steps", "model.fp16_type", "model.use_bfloat16",
    "optimizer.betas",     "optimizer.correct_bias"};

// Only the TensorFlow Trainer and its Estimator read these.
constexpr std::array<std::string_view, 10> kTensorFlowPaths = {
    "optimizer.overflow_tolerance",     "optimizer.log_grads",        "optimizer.log_hists",
    "optimizer.rmsprop_decay",          "optimizer.rmsprop_momentum", "model.tf_summary",
    "runconfig.save_checkpoints_steps", "runconfig.tf_random_seed",   "runconfig.throttle_secs",
    "runconfig.log_step_count_steps"};

// 0 is off, as in the original.
Clipping ReadClipping(const ConfigBlock& block) {
  const auto read = [&](std::string_view key) {
    std::optional<ConfigNumber> limit = block.Number(key, NumberRange::kAny);
    if (limit && limit->value < 0) {
      block.Refuse("", std::string(key) + " cannot be negative. Got " + limit->text);
    }
    return limit && limit->value != 0 ? limit : std::nullopt;
  };
  const std::optional<ConfigNumber> norm = read("max_gradient_norm");
  const std::optional<ConfigNumber> value = read("max_gradient_value");
  if (norm && value) {
    block.Refuse("",
                 "Gradients can be clipped by norm or by value, but not both. Do not set both "
                 "max_gradient_norm and max_gradient_value.");
  }
  Clipping clipping;
  clipping.rule = ClipRule::kTensorFlow;
  if (norm) clipping.max_norm = norm->value;
  if (value) clipping.max_value = value->value;
  return clipping;
}

void AddPeriod(const LossScaling& scaling, ConfigPolicy& policy) {
  AddSetting(policy, "initial_loss_scale", scaling.initial_loss_scale);
  if (scaling.steps_per_increase) {
    policy.settings.push_back("increment_period=" + std::to_string(*scaling.steps_per_increase));
  }
}

// Here 0 is no default: the original takes it literally.
void RequirePositive(const ConfigBlock& block, const LossScaling& scaling) {
  if (!scaling.dynamic()) return;
  block.Number("initial_loss_scale", NumberRange::kPositive);
  block.Number("max_loss_scale", NumberRange::kPositive);
}

ConfigPolicy Scaler(const ConfigBlock& optimizer, const LossScaling& scaling,
                    std::vector<std::string>& notes) {
  ConfigPolicy policy;
  if (scaling.factor == LossScaling::Factor::kDynamic) {
    policy.name = "cerebras-tf";
    AddPeriod(scaling, policy);
    AddSetting(policy, "min_loss_scale", scaling.min_loss_scale);
    AddSetting(policy, "max_loss_scale", scaling.max_loss_scale);
    AddSetting(policy, "overflow_tolerance",
               optimizer.Number("overflow_tolerance", NumberRange::kNotNegative));
  } else if (scaling.factor == LossScaling::Factor::kTfDynamic) {
    policy.name = "tf";
    AddPeriod(scaling, policy);
    notes.push_back(
        "tf_dynamic: on a Cerebras system CSDynamicLossScale takes its place (policy cerebras-tf)");
  } else if (std::fabs(scaling.scale() - 1) <= 1e-8 + 1e-5) {  // numpy.isclose
    policy = NoScaler();
  } else {
    policy = {"static", {"loss_scale=" + scaling.static_scale->text}};
  }
  return policy;
}

}  // namespace

bool LooksLikeTfTrainer(const ConfigBlock& file) {
  const ConfigNode& root = file.node();
  const ConfigNode* optimizer = root.Find("optimizer");
  if (optimizer == nullptr || optimizer->kind != ConfigNode::Kind::kTable) return false;
  if (file.Table("optimizer")->Is("loss_scaling_factor", "tf_dynamic")) return true;
  const auto has = [&](std::string_view path) { return root.FindPath(path) != nullptr; };
  return std::ranges::none_of(kPytorchPaths, has) && std::ranges::any_of(kTensorFlowPaths, has);
}

TrainingConfig ReadTfTrainer(const ConfigBlock& file, const ConfigOptions&) {
  TrainingConfig config = {.kind = "Model Zoo TensorFlow Trainer", .formats = {}, .policies = {}};
  const std::optional<ConfigBlock> optimizer = file.Table("optimizer");
  if (!optimizer) file.Refuse("optimizer", "missing", "keys with values");
  const bool mixed = ReadMixedPrecision(file);
  const bool cbfloat16 = ReadUseCbfloat16(file, mixed);
  if (mixed) {
    config.formats = {cbfloat16 ? "cb16" : "fp16"};
  } else {
    config.notes.push_back("model.mixed_precision is off: this run computes in float32");
  }
  const LossScaling scaling = ReadLossScaling(*optimizer, TfDynamic::kKnown);
  RequirePositive(*optimizer, scaling);
  RequireOrder(*optimizer, scaling, 0x1p-14, 0x1p15);
  config.policies = {Scaler(*optimizer, scaling, config.notes)};
  config.clipping = ReadClipping(*optimizer);
  config.grad_accum_steps = optimizer->Integer("grad_accum_steps", 1);
  AddNotes(file.NoteMisspelt(kTfFileKeys), config.notes);
  if (const auto model = file.Table("model")) {
    AddNotes(model->NoteMisspelt(kTfModelKeys), config.notes);
  }
  AddNotes(optimizer->NoteMisspelt(kTfScalerKeys), config.notes);
  return config;
}

}  // namespace dlsim::sim
