// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's JSON, also as Hugging Face's trainer has it, with "auto" values, and as GPT-NeoX has
// it, in YAML with `precision`.
// Source: microsoft/DeepSpeed, deepspeed/runtime/config.py and precision_config.py;
// EleutherAI/gpt-neox, megatron/neox_arguments/arguments.py.
#include <algorithm>
#include <array>

#include "dlsim/error.h"
#include "sim/base/suggest.h"
#include "sim/config/cerebras_keys.h"
#include "sim/config/dialects.h"
#include "src/base/nearest_name.h"

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 9> kFp16Keys = {"enabled",
                                                       "auto_cast",
                                                       "loss_scale",
                                                       "initial_scale_power",
                                                       "loss_scale_window",
                                                       "hysteresis",
                                                       "consecutive_hysteresis",
                                                       "min_loss_scale",
                                                       "fp16_master_weights_and_grads"};

constexpr std::array<std::string_view, 5> kDynamicKeys = {
    "initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis",
    "min_loss_scale"};
constexpr std::array<std::string_view, 7> kDeepSpeedKeys = {"fp16",
                                                            "bf16",
                                                            "bfloat16",
                                                            "zero_optimization",
                                                            "gradient_clipping",
                                                            "gradient_accumulation_steps",
                                                            "amp"};
constexpr std::array<std::string_view, 1> kEnabledKeys = {"enabled"};
constexpr std::array<std::string_view, 1> kZeroKeys = {"stage"};

// The first version that reads fp16 by precision_config.py.
constexpr StackVersion kPrecisionConfig = {0, 17, 1};

// Reads values that may be "auto", which a note then resolves.
struct AutoReader {
  const ConfigBlock& block;
  std::vector<std::string>& notes;

  // True if the value is "auto".
  bool Auto(std::string_view key, std::string_view meaning) const {
    if (!block.Is(key, "auto")) return false;
    notes.push_back((block.path().empty() ? "" : block.path() + ".") + std::string(key) +
                    " is auto: read as " + std::string(meaning));
    return true;
  }
  bool Bool(std::string_view key, bool if_auto) const {
    if (Auto(key, if_auto ? "true" : "false")) return if_auto;
    return block.Bool(key).value_or(false);
  }
  std::optional<int64_t> Integer(std::string_view key, int64_t min, int64_t max,
                                 std::string_view fallback) const {
    return Auto(key, fallback) ? std::nullopt : block.Integer(key, min, max);
  }
  std::optional<ConfigNumber> Number(std::string_view key, std::string_view fallback) const {
    return Auto(key, fallback) ? std::nullopt : block.Number(key, NumberRange::kNotNegative);
  }
};

constexpr int64_t kNoMaximum = std::numeric_limits<int64_t>::max();

// Returns zero_optimization.stage; early versions wrote `true` for stage 1.
int64_t ReadZeroStage(const ConfigBlock& file, std::vector<std::string>& notes) {
  const ConfigNode* zero = file.Find("zero_optimization");
  if (zero != nullptr && zero->kind == ConfigNode::Kind::kBool) return zero->text == "true" ? 1 : 0;
  const std::optional<ConfigBlock> block = file.Table("zero_optimization");
  if (!block) return 0;
  return AutoReader{*block, notes}.Integer("stage", 0, 3, "0").value_or(0);
}

// The loss scaler of ZeRO.
ConfigPolicy ZeroScaler(const AutoReader& fp16, ConfigPolicy policy) {
  policy.name = "deepspeed";
  const int64_t hysteresis = fp16.Integer("hysteresis", 0, kNoMaximum, "2").value_or(2);
  policy.settings.push_back("delayed_shift=" + std::to_string(hysteresis));
  const bool consecutive = fp16.Bool("consecutive_hysteresis", false);
  policy.settings.push_back(std::string("consecutive_hysteresis=") +
                            (consecutive ? "true" : "false"));
  return policy;
}

// FP16_Optimizer, which serves without ZeRO.
ConfigPolicy PlainScaler(const AutoReader& fp16, ConfigPolicy policy) {
  policy.name = "deepspeed-fp16-optimizer";
  fp16.Integer("hysteresis", 0, kNoMaximum, "2");
  fp16.Bool("consecutive_hysteresis", false);
  if (fp16.block.Has("hysteresis") || fp16.block.Has("consecutive_hysteresis")) {
    fp16.notes.push_back("without ZeRO, FP16_Optimizer knows no hysteresis: it has no effect");
  }
  return policy;
}

bool UsesLamb(const ConfigBlock& file) {
  const ConfigNode* type = file.node().FindPath("optimizer.type");
  return type != nullptr &&
         (EqualsIgnoringCase(type->text, "lamb") || EqualsIgnoringCase(type->text, "onebitlamb"));
}

// Before 0.17.1 a file without any of kDynamicKeys got the defaults of the scalers' own classes.
void ApplyEarlyDefaults(const AutoReader& fp16, int64_t stage, bool lamb,
                        std::optional<StackVersion> version, ConfigPolicy& policy) {
  const auto has = [&](std::string_view key) { return fp16.block.node().Find(key) != nullptr; };
  if (std::ranges::any_of(kDynamicKeys, has) || (stage == 0 && !lamb)) return;
  if (!version) {
    fp16.notes.push_back(
        std::string("DeepSpeed before 0.17.1 takes other defaults where fp16 has no key of dynamic "
                    "scaling (--config-version): ") +
        (stage > 0 ? "an initial scale of 2^32 and hysteresis 1" : "a min_loss_scale of 0.25"));
  } else if (*version < kPrecisionConfig) {
    policy.settings = stage > 0 ? std::vector<std::string>{"init_scale=2^32", "delayed_shift=1"}
                                : std::vector<std::string>{"init_scale=2^16", "min_scale=0.25"};
  }
}

ConfigPolicy Scaler(const ConfigBlock& file, const AutoReader& fp16,
                    std::optional<StackVersion> version) {
  const int64_t stage = ReadZeroStage(file, fp16.notes);
  const std::optional<ConfigNumber> scale = fp16.Number("loss_scale", "0 (dynamic)");
  const int64_t power = fp16.Integer("initial_scale_power", 0, 1023, "16").value_or(16);
  const int64_t window = fp16.Integer("loss_scale_window", 1, kNoMaximum, "1000").value_or(1000);
  const std::optional<ConfigNumber> min = fp16.Number("min_loss_scale", "1");
  ConfigPolicy policy = {
      "",
      {"init_scale=2^" + std::to_string(power), "scale_window=" + std::to_string(window),
       "min_scale=" + (min ? min->text : "1")}};
  policy = stage == 0 ? PlainScaler(fp16, std::move(policy)) : ZeroScaler(fp16, std::move(policy));
  if (scale && scale->value != 0) return {policy.name, {"loss_scale=" + scale->text}};
  ApplyEarlyDefaults(fp16, stage, UsesLamb(file), version, policy);
  return policy;
}

// Before 0.17.1 nobody looked for unknown keys in fp16. A slip is an error all the same.
void CheckFp16Keys(const ConfigBlock& fp16, std::optional<StackVersion> version,
                   std::vector<std::string>& notes) {
  for (const ConfigEntry& entry : fp16.node().entries) {
    if (std::ranges::find(kFp16Keys, entry.key) != kFp16Keys.end()) continue;
    const bool slip = !Suggest(entry.key, kFp16Keys).empty();
    if (slip || (version && *version >= kPrecisionConfig)) fp16.RequireKnown(kFp16Keys);
    notes.push_back("fp16." + Printable(entry.key) +
                    " is not read: DeepSpeed ignores it before 0.17.1 and refuses it since then");
  }
}

// Returns the value of GPT-NeoX's `precision`, if there is one.
std::string ReadNeoxPrecision(const ConfigBlock& file) {
  constexpr std::array<std::string_view, 3> kNames = {"fp16", "bfloat16", "fp32"};
  return file.Choice("precision", kNames).value_or("");
}

// True if bf16 is on; older files call it bfloat16.
bool ReadBf16(const ConfigBlock& file, bool fp16, std::vector<std::string>& notes) {
  if (ReadNeoxPrecision(file) == "bfloat16") return true;
  for (const std::string_view key : {"bf16", "bfloat16"}) {
    const std::optional<ConfigBlock> block = file.Table(key);
    if (!block || !AutoReader{*block, notes}.Bool("enabled", !fp16)) continue;
    if (fp16) {
      block->Refuse("enabled", "bfloat16 and fp16 modes cannot be simultaneously enabled");
    }
    return true;
  }
  return false;
}

// "auto" is fp16 unless bf16 is asked for in so many words.
bool ReadFp16Enabled(const ConfigBlock& file, const std::optional<ConfigBlock>& fp16,
                     std::vector<std::string>& notes) {
  const std::string precision = ReadNeoxPrecision(file);
  bool bf16_asked = false;
  for (const std::string_view path : {"bf16.enabled", "bfloat16.enabled"}) {
    const ConfigNode* enabled = file.node().FindPath(path);
    bf16_asked |= enabled != nullptr && enabled->text == "true";
  }
  const bool enabled = fp16 && AutoReader{*fp16, notes}.Bool("enabled", !bf16_asked);
  if (enabled && !precision.empty() && precision != "fp16") {
    file.Refuse("precision", "DeepSpeed fp16 field was set but precision conflicts");
  }
  return enabled || precision == "fp16";
}

void ReadTypes(const ConfigBlock& file, std::optional<StackVersion> version,
               TrainingConfig& config) {
  static const ConfigNode empty = {ConfigNode::Kind::kTable, "", 0, {}};
  const std::optional<ConfigBlock> fp16 = file.Table("fp16");
  if (fp16) CheckFp16Keys(*fp16, version, config.notes);
  const bool fp16_enabled = ReadFp16Enabled(file, fp16, config.notes);
  const bool bf16_enabled = ReadBf16(file, fp16_enabled, config.notes);
  const ConfigBlock block = fp16.value_or(ConfigBlock("", empty));
  const AutoReader reader = {block, config.notes};
  reader.Bool("auto_cast", false);
  reader.Bool("fp16_master_weights_and_grads", false);
  const size_t notes = config.notes.size();
  config.policies = {Scaler(file, reader, version)};
  if (fp16_enabled) {
    config.formats = {"fp16"};
    return;
  }
  config.notes.resize(notes);  // of keys without effect
  config.policies = {NoScaler()};
  if (bf16_enabled) config.formats = {"bf16"};
  config.notes.push_back(bf16_enabled ? "bf16: no loss scaling"
                                      : "neither fp16 nor bf16 is enabled: this run computes in "
                                        "float32");
}

void NoteDeepSpeedSlips(const ConfigBlock& file, std::vector<std::string>& notes) {
  AddNotes(file.NoteMisspelt(kDeepSpeedKeys), notes);
  for (const std::string_view key : {"bf16", "bfloat16", "zero_optimization"}) {
    const ConfigNode* value = file.Find(key);
    if (value == nullptr || value->kind != ConfigNode::Kind::kTable) continue;
    AddNotes(file.Table(key)->NoteMisspelt(key == "zero_optimization" ? kZeroKeys : kEnabledKeys),
             notes);
  }
}

// What happens to gradients between ranks is not in a trace.
void NoteNotSimulated(const ConfigBlock& file, std::vector<std::string>& notes) {
  const auto note = [&](std::string_view key) {
    notes.push_back(std::string(key) +
                    " is not simulated: gradients are taken as the trace has them");
  };
  if (file.Bool("prescale_gradients").value_or(false)) note("prescale_gradients");
  const auto factor = file.Number("gradient_predivide_factor", NumberRange::kAny);
  if (factor && factor->value != 1) note("gradient_predivide_factor");
  if (file.Has("communication_data_type")) note("communication_data_type");
}

}  // namespace

bool LooksLikeDeepSpeed(const ConfigBlock& file) {
  for (const std::string_view key :
       {"fp16", "bf16", "bfloat16", "zero_optimization", "train_batch_size",
        "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
    if (file.node().Find(key) != nullptr) return true;
  }
  return false;
}

TrainingConfig ReadDeepSpeed(const ConfigBlock& file, const ConfigOptions& options) {
  TrainingConfig config = {.kind = "DeepSpeed", .formats = {}, .policies = {}};
  NoteDeepSpeedSlips(file, config.notes);
  ReadTypes(file, options.version, config);
  NoteNotSimulated(file, config.notes);
  const AutoReader reader = {file, config.notes};
  // Hugging Face's trainer fills in its max_grad_norm, 1.0 by default.
  const bool clip_auto = reader.Auto("gradient_clipping", "1.0, the default of max_grad_norm");
  const std::optional<ConfigNumber> clip =
      clip_auto ? ConfigNumber{1, "1.0"}
                : file.Number("gradient_clipping", NumberRange::kNotNegative);
  if (clip && clip->value > 0) config.clipping.max_norm = clip->value;
  config.grad_accum_steps = reader.Integer("gradient_accumulation_steps", 1, kNoMaximum, "1");
  const std::optional<ConfigBlock> amp = file.Table("amp");
  if (amp && amp->Bool("enabled").value_or(false)) {
    config.notes.push_back("amp (Apex) is not read: give its arguments in a file of kind apex");
  }
  return config;
}

}  // namespace dlsim::sim
