// SPDX-License-Identifier: Apache-2.0
// The PyTorch configurations of the Cerebras Model Zoo before its trainer class: loss scaling and
// clipping in `optimizer`, types in `model`, the rest in `runconfig`.
// Source: Cerebras/modelzoo, common/pytorch/run_cstorch_flow.py (class GradScalerParams).
#include <array>

#include "sim/config/cerebras_keys.h"
#include "sim/config/dialects.h"

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 8> kScalerKeys = {
    "loss_scaling_factor", "initial_loss_scale", "steps_per_increase", "min_loss_scale",
    "max_loss_scale",      "max_gradient_norm",  "max_gradient_value", "grad_accum_steps"};

// Returns fp16_type, which took the place of use_bfloat16.
std::string ReadType(const ConfigBlock& model) {
  const bool bfloat16 = model.Bool("use_bfloat16").value_or(false);
  return model.Choice("fp16_type", kHalfTypes).value_or(bfloat16 ? "bfloat16" : "float16");
}

// Returns the type that the arithmetic uses; cbfloat16 and bfloat16 also decide about scaling.
std::string ReplaceType(const ConfigBlock& optimizer, const std::string& type, bool mixed,
                        Backend backend, LossScaling& scaling, std::vector<std::string>& notes) {
  const bool csx = backend == Backend::kCsx;
  if (type == "cbfloat16" && csx && !scaling.dynamic()) {
    optimizer.Refuse("",
                     "In order to use cbfloat16, dynamic loss scaling must be enabled. Otherwise, "
                     "gradients might underflow/overflow in the middle of training and cause NaNs. "
                     "Please set `loss_scaling_factor` to `dynamic` to use cbfloat16.");
  }
  std::string math = type;
  if (type == "cbfloat16" && !csx) {
    notes.push_back("cbfloat16 is only supported on CSX: the half type is bfloat16");
    math = "bfloat16";
  }
  if (math == "bfloat16" && scaling.dynamic()) {
    notes.push_back("no dynamic loss scaling with bfloat16: loss_scaling_factor is set to 1.0");
    scaling.factor = LossScaling::Factor::kStatic;
  }
  if (math == "float16" && mixed && backend == Backend::kCpu) {
    notes.push_back("mixed precision on CPU is only supported with bfloat16");
    math = "bfloat16";
  }
  return math;
}

void AddOldScaler(const LossScaling& scaling, const std::string& type, Backend backend,
                  TrainingConfig& config) {
  if (backend == Backend::kCsx) {
    config.policies = {CerebrasScaler(scaling, type)};
  } else if (backend == Backend::kGpu) {
    config.policies = {GpuScaler(scaling, "2^15", config.notes)};
  } else {
    config.policies = {NoScaler()};
    config.notes.push_back("gradient scaling is not supported on CPU: it is switched off");
  }
}

void ReadAccumulation(const ConfigBlock& optimizer, const std::optional<ConfigBlock>& runconfig,
                      Backend backend, TrainingConfig& config) {
  std::optional<int64_t> steps = optimizer.Integer("grad_accum_steps", 1);
  if (!steps && runconfig) steps = runconfig->Integer("grad_accum_steps", 1);
  if (backend != Backend::kCsx) config.grad_accum_steps = steps;
  if (backend == Backend::kCsx && steps.value_or(1) > 1) {
    config.notes.push_back("grad_accum_steps has no effect on CSX");
  }
}

void ReadOptLevel(const std::optional<ConfigBlock>& runconfig,
                  const std::optional<ConfigBlock>& model, TrainingConfig& config) {
  if (runconfig) config.precision_opt_level = runconfig->Integer("precision_opt_level", 0, 2);
  if (model && !config.precision_opt_level) {
    config.precision_opt_level = model->Integer("precision_opt_level", 0, 2);
  }
  if (config.precision_opt_level) {
    config.notes.push_back(PrecisionOptLevelNote(*config.precision_opt_level));
  }
}

}  // namespace

bool LooksLikeModelZooOld(const ConfigBlock& file) {
  const ConfigNode& root = file.node();
  return root.FindPath("optimizer.optimizer_type") != nullptr ||
         root.FindPath("optimizer.loss_scaling_factor") != nullptr;
}

TrainingConfig ReadModelZooOld(const ConfigBlock& file, std::optional<Backend> asked) {
  TrainingConfig config = {
      .kind = "Model Zoo before the trainer class", .formats = {}, .policies = {}};
  const std::optional<ConfigBlock> optimizer = file.Table("optimizer");
  if (!optimizer) file.Refuse("optimizer", "missing", "keys with values");
  const std::optional<ConfigBlock> model = file.Table("model");
  const std::optional<ConfigBlock> runconfig = file.Table("runconfig");
  const Backend backend = ChooseBackend(asked, runconfig, "target_device");
  const bool mixed = model && model->Bool("mixed_precision").value_or(false);
  const std::string type = model ? ReadType(*model) : "float16";
  LossScaling scaling = ReadLossScaling(*optimizer, TfDynamic::kUnknown);
  RequireOrder(*optimizer, scaling, 0x1p-14, type == "cbfloat16" ? 0x1p31 : 0x1p15);
  const std::string math = ReplaceType(*optimizer, type, mixed, backend, scaling, config.notes);
  if (mixed) {
    config.formats = {math == "float16" ? "fp16" : math == "bfloat16" ? "bf16" : "cb16"};
  } else {
    config.notes.push_back("model.mixed_precision is off: this run computes in float32");
  }
  AddOldScaler(scaling, type, backend, config);
  config.clipping = ReadTorchClipping(*optimizer);
  ReadAccumulation(*optimizer, runconfig, backend, config);
  ReadOptLevel(runconfig, model, config);
  for (std::string& note : optimizer->NoteMisspelt(kScalerKeys)) {
    config.notes.push_back(std::move(note));
  }
  return config;
}

}  // namespace dlsim::sim
