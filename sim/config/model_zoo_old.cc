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

constexpr std::array<std::string_view, 4> kOldFileKeys = {"optimizer", "model", "runconfig",
                                                          "csconfig"};
constexpr std::array<std::string_view, 4> kOldModelKeys = {"fp16_type", "mixed_precision",
                                                           "use_bfloat16", "precision_opt_level"};
constexpr std::array<std::string_view, 3> kRunconfigKeys = {"target_device", "grad_accum_steps",
                                                            "precision_opt_level"};

// The release whose GPT models choose bfloat16 (gpt2/utils.py and gptj/utils.py, set_defaults).
constexpr StackVersion kBfloat16Release = {1, 9, 1};

// The release that converts these files to the trainer's layout, whose own default is bfloat16.
constexpr StackVersion kConvertedRelease = {2, 4, 0};

// True for the models of the folders gpt2 and gptj, which all GPT-like models are.
bool IsGptModel(const ConfigNode& model) {
  return model.Find("use_bias_in_output") != nullptr || model.Find("attention_module") != nullptr;
}

// The type that the model's own defaults choose.
std::string DefaultType(const ConfigNode& model, std::optional<StackVersion> version,
                        std::vector<std::string>& notes) {
  if (version && *version >= kConvertedRelease) return "bfloat16";
  if (!IsGptModel(model)) return "float16";
  // Later files say loss_scaling where those of 1.6 have the weight alone.
  const bool early = model.Find("loss_weight") != nullptr && model.Find("loss_scaling") == nullptr;
  const bool bfloat16 = version ? *version >= kBfloat16Release : !early;
  if (bfloat16) {
    notes.push_back(
        "neither fp16_type nor use_bfloat16: GPT models choose bfloat16 since release 1.9.1; "
        "before, float16 (--config-version)");
  }
  return bfloat16 ? "bfloat16" : "float16";
}

// Returns fp16_type, which took the place of use_bfloat16.
std::string ReadType(const ConfigBlock& model, std::optional<StackVersion> version,
                     std::vector<std::string>& notes) {
  if (const auto type = model.Choice("fp16_type", kHalfTypes)) return *type;
  if (const auto bfloat16 = model.Bool("use_bfloat16")) return *bfloat16 ? "bfloat16" : "float16";
  return DefaultType(model.node(), version, notes);
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
  if (config.precision_opt_level) config.notes.push_back(kPrecisionOptLevelNote);
}

void NoteSlips(const ConfigBlock& file, std::vector<std::string>& notes) {
  AddNotes(file.NoteMisspelt(kOldFileKeys), notes);
  const auto add = [&](std::string_view name, std::span<const std::string_view> keys) {
    if (const auto block = file.Table(name)) AddNotes(block->NoteMisspelt(keys), notes);
  };
  add("model", kOldModelKeys);
  add("runconfig", kRunconfigKeys);
  add("optimizer", kScalerKeys);
}

}  // namespace

bool LooksLikeModelZooOld(const ConfigBlock& file) {
  const ConfigNode& root = file.node();
  return root.FindPath("optimizer.optimizer_type") != nullptr ||
         root.FindPath("optimizer.loss_scaling_factor") != nullptr;
}

TrainingConfig ReadModelZooOld(const ConfigBlock& file, const ConfigOptions& options) {
  TrainingConfig config = {
      .kind = "Model Zoo before the trainer class", .formats = {}, .policies = {}};
  const std::optional<ConfigBlock> optimizer = file.Table("optimizer");
  if (!optimizer) file.Refuse("optimizer", "missing", "keys with values");
  const std::optional<ConfigBlock> model = file.Table("model");
  const std::optional<ConfigBlock> runconfig = file.Table("runconfig");
  const auto own = runconfig ? ReadBackend(*runconfig, "target_device") : std::nullopt;
  const Backend backend = options.backend.value_or(own.value_or(Backend::kCsx));
  const bool mixed = ReadMixedPrecision(file);
  const bool cbfloat16 = ReadUseCbfloat16(file, mixed) && backend == Backend::kCsx;
  const std::string type = model ? ReadType(*model, options.version, config.notes) : "float16";
  LossScaling scaling = ReadLossScaling(*optimizer, TfDynamic::kUnknown);
  RequireOrder(*optimizer, scaling, 0x1p-14, type == "cbfloat16" ? 0x1p31 : 0x1p15);
  const std::string math = ReplaceType(*optimizer, type, mixed, backend, scaling, config.notes);
  if (mixed) {
    config.formats = {cbfloat16 ? "cb16" : FormatOfHalfType(math)};
    config.updates.formats = AutocastFormats(config.formats.front());
  } else {
    config.notes.push_back("model.mixed_precision is off: this run computes in float32");
  }
  AddOldScaler(scaling, type, backend, config);
  config.clipping = ReadTorchClipping(*optimizer);
  ReadAccumulation(*optimizer, runconfig, backend, config);
  ReadOptLevel(runconfig, model, config);
  NoteSlips(file, config.notes);
  return config;
}

}  // namespace dlsim::sim
