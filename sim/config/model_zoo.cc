// SPDX-License-Identifier: Apache-2.0
// The trainer YAML of the Cerebras Model Zoo: trainer.init.precision is its class MixedPrecision.
// Source: Cerebras/modelzoo, trainer/callbacks/precision.py and loop.py.
#include <array>

#include "sim/config/cerebras_keys.h"
#include "sim/config/dialects.h"

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 11> kPrecisionKeys = {"enabled",
                                                             "fp16_type",
                                                             "precision_opt_level",
                                                             "loss_scaling_factor",
                                                             "initial_loss_scale",
                                                             "steps_per_increase",
                                                             "min_loss_scale",
                                                             "max_loss_scale",
                                                             "max_gradient_norm",
                                                             "max_gradient_value",
                                                             "log_loss_scale"};

// Their defaults are not None.
constexpr std::array<std::string_view, 4> kPrecisionNotNull = {
    "enabled", "fp16_type", "loss_scaling_factor", "steps_per_increase"};
constexpr std::array<std::string_view, 1> kLoopKeys = {"grad_accum_steps"};
constexpr std::array<std::string_view, 4> kInitKeys = {"precision", "backend", "device", "loop"};
constexpr std::array<std::string_view, 1> kBackendKeys = {"backend_type"};

// The type that the arithmetic uses. The original replaces it by an object that is not equal to
// "bfloat16", so that it still makes a scaler; hence `scaler_type` stays as written.
std::string MathType(const ConfigBlock& precision, const LossScaling& scaling,
                     const std::string& scaler_type, Backend backend,
                     std::vector<std::string>& notes) {
  if (scaler_type == "cbfloat16" && backend == Backend::kCsx && !scaling.dynamic()) {
    precision.Refuse("",
                     "In order to use cbfloat16, dynamic loss scaling must be enabled. Otherwise, "
                     "gradients might underflow/overflow in the middle of training and cause NaNs. "
                     "Please set `loss_scaling_factor` to `dynamic` to use cbfloat16.");
  }
  const bool only_csx = scaler_type == "cbfloat16" && backend != Backend::kCsx;
  const bool only_bfloat16 = backend == Backend::kCpu && scaler_type != "bfloat16";
  if (!only_csx && !only_bfloat16) return scaler_type;
  notes.push_back(only_csx ? "cbfloat16 is only supported on CSX: the half type is bfloat16"
                           : "mixed precision on CPU is only supported with bfloat16");
  notes.push_back(
      "a torch GradScaler is made all the same: the Model Zoo compares the replaced type with a "
      "text (without CUDA torch then disables the scaler)");
  return "bfloat16";
}

void AddScaler(const LossScaling& scaling, const std::string& type, Backend backend,
               TrainingConfig& config) {
  if (type == "bfloat16") {
    config.policies = {NoScaler()};
    const bool asked = scaling.dynamic() || scaling.scale() != 1;
    config.notes.push_back(asked ? "fp16_type bfloat16 switches loss scaling off: "
                                   "loss_scaling_factor has no effect"
                                 : "fp16_type bfloat16: no loss scaling");
  } else if (backend == Backend::kCsx) {
    config.policies = {CerebrasScaler(scaling, type)};
    if (!scaling.dynamic() && scaling.scale() == 0) {
      config.notes.push_back("loss_scaling_factor 0 means the default, 1");
    }
  } else {
    config.policies = {GpuScaler(scaling, "65536", config.notes)};
  }
}

// The original checks types, and None is none of theirs.
void RefuseNulls(const ConfigBlock& block, std::span<const std::string_view> keys) {
  for (const std::string_view key : keys) {
    const ConfigNode* value = block.node().Find(key);
    if (value == nullptr || value->kind != ConfigNode::Kind::kNull) continue;
    block.Refuse(key, "wrong type", "a value, or no such key", "null");
  }
}

void ReadPrecision(const ConfigBlock& precision, Backend backend, TrainingConfig& config) {
  precision.RequireKnown(kPrecisionKeys);
  RefuseNulls(precision, kPrecisionNotNull);
  precision.Bool("log_loss_scale");
  config.precision_opt_level = precision.Integer("precision_opt_level", 0, 2);
  if (config.precision_opt_level) config.notes.push_back(kPrecisionOptLevelNote);
  const bool asked_off = precision.Bool("enabled") == false;
  const bool off = asked_off && backend != Backend::kCsx;
  if (asked_off && !off) {
    config.notes.push_back("mixed precision must be enabled for CSX: enabled false is ignored");
  }
  const std::string type = precision.Choice("fp16_type", kHalfTypes).value_or("bfloat16");
  const LossScaling scaling = ReadLossScaling(precision, TfDynamic::kUnknown);
  const bool cb16 = type == "cbfloat16";
  RequireOrder(precision, scaling, 0x1p-14, cb16 ? 0x1p31 : 0x1p15);
  config.clipping = ReadTorchClipping(precision);
  if (off) {
    config.notes.push_back("enabled false: this run computes in float32");
  } else {
    config.formats = {FormatOfHalfType(MathType(precision, scaling, type, backend, config.notes))};
    config.updates.formats = AutocastFormats(config.formats.front());
  }
  AddScaler(scaling, type, backend, config);
}

// Returns `trainer`, or the first of a list of trainers.
std::optional<ConfigBlock> FindTrainer(const ConfigBlock& file, std::vector<std::string>& notes) {
  const std::vector<ConfigBlock> phases = file.Items("trainer");
  if (phases.empty()) return file.Table("trainer");
  if (phases.size() > 1) {
    notes.push_back("the file lists " + std::to_string(phases.size()) +
                    " trainers: the first is read");
  }
  return phases.front().Table("trainer");
}

// The trainer takes a backend or a device, never both.
std::optional<Backend> FindBackend(const ConfigBlock& init, std::vector<std::string>& notes) {
  const std::optional<ConfigBlock> block = init.Table("backend");
  if (block) AddNotes(block->NoteMisspelt(kBackendKeys), notes);
  const auto backend = block ? ReadBackend(*block, "backend_type") : std::nullopt;
  if (!backend) return ReadBackend(init, "device");
  if (!init.Has("device")) return backend;
  init.Refuse("device",
              "backend and device are mutually exclusive arguments of Trainer. Please only provide "
              "one or the other");
}

}  // namespace

// Lightning, fairseq2 and verl have a trainer, too, without init.
bool LooksLikeModelZoo(const ConfigBlock& file) {
  const ConfigNode* trainer = file.node().Find("trainer");
  if (trainer == nullptr) return false;
  if (trainer->kind != ConfigNode::Kind::kList) return trainer->Find("init") != nullptr;
  return !trainer->entries.empty() &&
         trainer->entries.front().value.FindPath("trainer.init") != nullptr;
}

TrainingConfig ReadModelZoo(const ConfigBlock& file, const ConfigOptions& options) {
  TrainingConfig config = {.kind = "Model Zoo trainer", .formats = {}, .policies = {}};
  const std::optional<ConfigBlock> trainer = FindTrainer(file, config.notes);
  const std::optional<ConfigBlock> init = trainer ? trainer->Table("init") : std::nullopt;
  if (!init) file.Refuse("trainer", "no table init", "trainer.init");
  AddNotes(init->NoteMisspelt(kInitKeys), config.notes);
  const std::optional<Backend> own = FindBackend(*init, config.notes);
  const Backend backend = options.backend.value_or(own.value_or(Backend::kCsx));
  if (const std::optional<ConfigBlock> precision = init->Table("precision")) {
    ReadPrecision(*precision, backend, config);
  } else {
    config.policies = {NoScaler()};
    config.notes.push_back("no trainer.init.precision: no mixed precision and no loss scaling");
  }
  if (const std::optional<ConfigBlock> loop = init->Table("loop")) {
    AddNotes(loop->NoteMisspelt(kLoopKeys), config.notes);
    RefuseNulls(*loop, kLoopKeys);
    const std::optional<int64_t> steps = loop->Integer("grad_accum_steps", 1);
    if (backend != Backend::kCsx) config.grad_accum_steps = steps;
    if (backend == Backend::kCsx && steps.value_or(1) > 1) {
      config.notes.push_back("loop.grad_accum_steps has no effect on CSX");
    }
  }
  return config;
}

}  // namespace dlsim::sim
