// SPDX-License-Identifier: Apache-2.0
// PyTorch Lightning's trainer in YAML, and NVIDIA NeMo's, whose Megatron models have an own scaler.
// Compared with Lightning-AI/pytorch-lightning 2.6.6: trainer/connectors/accelerator_connector.py
// and plugins/precision; NVIDIA/NeMo, nlp/parts/megatron_trainer_builder.py.
#include <algorithm>
#include <array>

#include "dlsim/error.h"
#include "sim/config/arguments.h"
#include "sim/config/cerebras_keys.h"
#include "sim/config/dialects.h"
#include "sim/config/fsdp_types.h"
#include "sim/config/half_precision.h"
#include "sim/config/scaled_recipes.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

constexpr std::array<std::string_view, 3> kTrainingMarks = {
    "trainer.max_epochs", "trainer.max_steps", "trainer.max_time"};
constexpr std::array<std::string_view, 2> kNemoMegatronMarks = {"model.native_amp_init_scale",
                                                                "model.megatron_amp_O2"};

// A value of trainer.precision; "true" are weights in 16 bits, which nobody scales.
struct PrecisionName {
  std::string_view name;
  Precision precision;
  bool scaled = true;
};
constexpr std::array<PrecisionName, 12> kLightningPrecisions = {
    {{"32", Precision::kFloat32},
     {"32-true", Precision::kFloat32},
     {"64", Precision::kFloat32},
     {"64-true", Precision::kFloat32},
     {"16", Precision::kFp16},
     {"16-mixed", Precision::kFp16},
     {"16-true", Precision::kFp16, false},
     {"bf16", Precision::kBf16},
     {"bf16-mixed", Precision::kBf16},
     {"bf16-true", Precision::kBf16},
     {"fp32", Precision::kFloat32},
     {"fp16", Precision::kFp16}}};

const PrecisionName* FindPrecision(const ConfigNode& trainer) {
  const ConfigNode* value = trainer.Find("precision");
  if (value == nullptr || value->kind == Kind::kNull) return &kLightningPrecisions[0];
  const auto found = std::ranges::find(kLightningPrecisions, value->text, &PrecisionName::name);
  return found == kLightningPrecisions.end() ? nullptr : &*found;
}

bool IsSet(const ConfigNode& trainer, std::string_view key) {
  const ConfigNode* value = trainer.Find(key);
  return value != nullptr && value->kind != Kind::kNull &&
         !(value->kind == Kind::kList && value->entries.empty());
}

// Returns what stands in the way of reading, or nothing.
std::string_view Obstacle(const ConfigNode& trainer) {
  if (IsSet(trainer, "plugins")) return "plugins";
  const ConfigNode* strategy = trainer.Find("strategy");
  if (strategy == nullptr) return "";
  if (strategy->kind == Kind::kText)
    return strategy->text.starts_with("deepspeed") ? "strategy" : "";
  const ConfigNode* target = strategy->Find("_target_");
  if (target == nullptr) target = strategy->Find("class_path");
  return target != nullptr && target->text.find("DeepSpeed") != target->text.npos ? "strategy" : "";
}

// MegatronTrainerBuilder's own defaults where the model has none.
ConfigPolicy MegatronScaler(const ConfigBlock& model) {
  ConfigPolicy policy = {"apex-hysteresis", {}};
  const auto init = model.Number("native_amp_init_scale", NumberRange::kPositive);
  const auto interval = model.Integer("native_amp_growth_interval", 1);
  const auto hysteresis = model.Integer("hysteresis", 1);
  policy.settings = {"init_scale=" + (init ? init->text : "2^32"),
                     "growth_interval=" + std::to_string(interval.value_or(1000)),
                     "hysteresis=" + std::to_string(hysteresis.value_or(2))};
  return policy;
}

// The format of Transformer Engine's layers, as build_transformer_config chooses it.
std::string NemoFp8(const ConfigBlock& model, std::vector<std::string>& notes) {
  if (!model.Bool("fp8").value_or(false)) return "";
  for (const std::string_view elements : {"e4m3", "hybrid"}) {
    if (model.Bool("fp8_" + std::string(elements)).value_or(false)) {
      return MegatronFp8(model, elements, notes);
    }
  }
  model.Refuse("fp8", "NeMo refuses it without elements", "fp8_e4m3 or fp8_hybrid: true");
}

ConfigPolicy Scaler(const ConfigBlock& file, const ConfigBlock& trainer, TrainingConfig& config) {
  if (HasMark(file.node(), kNemoMegatronMarks)) {
    config.kind = "NeMo with Megatron";
    config.scaled = NemoFp8(*file.Table("model"), config.notes);
    return MegatronScaler(*file.Table("model"));
  }
  if (!trainer.Is("amp_backend", "apex")) return {"torch", {}};
  const std::string level = trainer.Text("amp_level").value_or("O2");
  if (level == "O1" || level == "O2") return {"apex", {}};
  return NoScaler();
}

// What Lightning 2 refuses.
void NoteOldKeys(const ConfigBlock& trainer, const PrecisionName& precision,
                 std::vector<std::string>& notes) {
  const auto note = [&](std::string_view what) {
    notes.push_back(std::string(what) + " is gone from Lightning 2, which refuses it");
  };
  for (const std::string_view key : {"amp_backend", "amp_level"}) {
    if (trainer.Has(key)) note(key);
  }
  if (precision.name == "fp16" || precision.name == "fp32") {
    note("precision " + std::string(precision.name));
  }
}

void ReadClipping(const ConfigBlock& trainer, TrainingConfig& config) {
  constexpr std::array<std::string_view, 2> kAlgorithms = {"norm", "value"};
  std::string algorithm = Lowered(trainer.Text("gradient_clip_algorithm").value_or("norm"));
  if (std::ranges::count(kAlgorithms, algorithm) == 0) {
    algorithm = *trainer.Choice("gradient_clip_algorithm", kAlgorithms);
  }
  RequireUnquoted(trainer, "gradient_clip_val");
  ReadNormLimit(trainer, "gradient_clip_val", std::nullopt, config);
  if (algorithm == "value") std::swap(config.clipping.max_norm, config.clipping.max_value);
}

// A strategy of FSDP by name, or by class with its arguments; null for others.
const ConfigNode* FsdpStrategy(const ConfigNode& trainer) {
  const ConfigNode* strategy = trainer.Find("strategy");
  if (strategy == nullptr) return nullptr;
  if (strategy->kind == Kind::kText) return strategy->text.starts_with("fsdp") ? strategy : nullptr;
  const ConfigNode* name = strategy->Find("_target_");
  if (name == nullptr) name = strategy->Find("class_path");
  const bool is_fsdp = name != nullptr && name->text.ends_with("FSDPStrategy") &&
                       name->text.find("Model") == name->text.npos;
  return is_fsdp ? strategy : nullptr;
}

// The arguments of a class, next to its name or in init_args.
ConfigBlock ArgumentsOf(const ConfigBlock& made) {
  return made.Has("init_args") ? TableOrEmpty(made, "init_args") : made;
}

// Parameters, sums and buffers have the type of the precision unless the strategy's own
// mixed_precision says otherwise; shards are in float32 unless the module is in 16 bits.
UpdateFormats FsdpFormatsOf(const ConfigBlock& file, const ConfigNode& strategy,
                            const std::string& type, bool is_pure) {
  const std::string shards = is_pure ? type : std::string(kFloat32Name);
  if (strategy.kind != Kind::kTable) return FsdpFormats(type, type, shards);
  const ConfigBlock arguments = ArgumentsOf(ConfigBlock(file.file(), strategy));
  if (!arguments.Has("mixed_precision")) return FsdpFormats(type, type, shards);
  const ConfigBlock own = ArgumentsOf(TableOrEmpty(arguments, "mixed_precision"));
  const ClearKeys keys(own);
  const std::optional<std::string> param = keys.FormatOr("param_dtype", shards);
  return FsdpFormats(param, keys.FormatOr("reduce_dtype", param), shards);
}

void ReadFormats(const ConfigBlock& file, const ConfigBlock& trainer,
                 const PrecisionName& precision, TrainingConfig& config) {
  if (config.formats.empty()) return;
  const std::string& type = config.formats.front();
  const bool is_pure = precision.name.ends_with("16-true");
  if (const ConfigNode* strategy = FsdpStrategy(trainer.node())) {
    config.updates.formats = FsdpFormatsOf(file, *strategy, type, is_pure);
    return;
  }
  if (!is_pure) return;
  // The module is in 16 bits, and what its optimizer makes of it is code.
  config.updates.formats = PureFormats(type, type);
  config.updates.formats.first = config.updates.formats.second = std::nullopt;
}

void ReadAccumulation(const ConfigBlock& trainer, TrainingConfig& config) {
  const ConfigNode* steps = trainer.Find("accumulate_grad_batches");
  if (steps != nullptr && steps->kind == Kind::kTable) {
    config.notes.push_back("accumulate_grad_batches is a schedule, which is not read");
  } else if (steps != nullptr && IsInterpolated(*steps)) {
    config.notes.push_back("accumulate_grad_batches depends on other keys, which is not read");
  } else {
    RequireUnquoted(trainer, "accumulate_grad_batches");
    config.grad_accum_steps = trainer.Integer("accumulate_grad_batches", 1);
  }
}

}  // namespace

bool LooksLikeLightning(const ConfigBlock& file) {
  const ConfigNode* trainer = file.node().Find("trainer");
  return trainer != nullptr && HasMark(file.node(), kTrainingMarks) &&
         FindPrecision(*trainer) != nullptr && Obstacle(*trainer).empty();
}

TrainingConfig ReadLightning(const ConfigBlock& file, const ConfigOptions&) {
  TrainingConfig config = {.kind = "PyTorch Lightning", .formats = {}, .policies = {}};
  const std::optional<ConfigBlock> trainer = file.Table("trainer");
  if (!trainer) file.Refuse("trainer", "missing", "keys with values");
  const PrecisionName* precision = FindPrecision(trainer->node());
  if (precision == nullptr) {
    trainer->Refuse("precision", "unknown name", "32, 16-mixed, bf16-mixed, 16-true or bf16-true",
                    DescribeNode(*trainer->Find("precision")));
  }
  if (const std::string_view key = Obstacle(trainer->node()); !key.empty()) {
    trainer->Refuse(key, "may scale the loss itself, which is not read",
                    "--policy NAME --format NAME --set KEY=VALUE");
  }
  if (file.Has("exp_manager")) config.kind = "NeMo";
  const ConfigPolicy scaler = Scaler(file, *trainer, config);
  ApplyPrecision(precision->precision, precision->scaled ? scaler : NoScaler(), config);
  if (!precision->scaled) {
    config.notes.push_back("precision " + std::string(precision->name) +
                           ": weights in 16 bits, no loss scaling");
  }
  ReadFormats(file, *trainer, *precision, config);
  NoteOldKeys(*trainer, *precision, config.notes);
  ReadClipping(*trainer, config);
  ReadAccumulation(*trainer, config);
  return config;
}

}  // namespace dlsim::sim
