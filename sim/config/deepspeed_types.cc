// SPDX-License-Identifier: Apache-2.0
#include "sim/config/deepspeed_types.h"

#include <algorithm>
#include <array>

#include "dlsim/error.h"
#include "sim/base/suggest.h"
#include "sim/config/cerebras_keys.h"
#include "sim/config/deepspeed_scaler.h"
#include "sim/config/deepspeed_updates.h"
#include "sim/config/dialects.h"
#include "sim/config/half_precision.h"

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

constexpr std::array<std::string_view, 5> kBf16Keys = {
    "enabled", "immediate_grad_update", "check_grad_overflow", "bf16_master_weights_and_grads",
    "bf16_optimizer_states"};

// Returns zero_optimization.stage; early versions wrote `true` for stage 1.
int64_t ReadZeroStage(const DeepSpeedValues& file) {
  const ConfigNode* zero = file.block.Find("zero_optimization");
  if (zero != nullptr && zero->kind == ConfigNode::Kind::kBool) return zero->text == "true" ? 1 : 0;
  const std::optional<ConfigBlock> block = file.block.Table("zero_optimization");
  if (!block) return 0;
  const int64_t stage =
      DeepSpeedValues{*block, file.release, file.notes}.Integer("stage", "0").value_or(0);
  if (stage < 0 || stage > 3) {
    block->Refuse("stage", "no such stage of ZeRO", "0, 1, 2 or 3", std::to_string(stage));
  }
  return stage;
}

// Before 0.17.1 nobody looked for unknown keys. In fp16 a slip is an error all the same.
void CheckKeys(const DeepSpeedValues& table, std::span<const std::string_view> keys) {
  for (const ConfigEntry& entry : table.block.node().entries) {
    if (std::ranges::find(keys, entry.key) != keys.end()) continue;
    const std::string meant = Suggest(entry.key, keys);
    const bool slip = !meant.empty() && table.block.path() == "fp16";
    const bool refused = table.release.named() && !table.release.IsBefore(kPrecisionConfig);
    if (slip || refused) table.block.RequireKnown(keys);
    const std::string did_you_mean = meant.empty() ? "" : " (did you mean '" + meant + "'?)";
    table.notes.push_back(table.block.path() + "." + Printable(entry.key) + " is not read" +
                          did_you_mean +
                          ": DeepSpeed ignores it before 0.17.1 and refuses it since then");
  }
}

// Returns the value of GPT-NeoX's `precision`, if there is one.
std::string ReadNeoxPrecision(const ConfigBlock& file) {
  constexpr std::array<std::string_view, 3> kNames = {"fp16", "bfloat16", "fp32"};
  return file.Choice("precision", kNames).value_or("");
}

// The table bf16; older files call it bfloat16, which loses.
std::optional<ConfigBlock> Bf16Table(const ConfigBlock& file) {
  std::optional<ConfigBlock> table = file.Table("bf16");
  return table ? table : file.Table("bfloat16");
}

// True if bf16 is on.
bool ReadBf16(const DeepSpeedValues& file, bool fp16) {
  if (ReadNeoxPrecision(file.block) == "bfloat16") return true;
  const std::optional<ConfigBlock> block = Bf16Table(file.block);
  if (!block) return false;
  const DeepSpeedValues bf16 = {*block, file.release, file.notes};
  CheckKeys(bf16, kBf16Keys);
  const bool enabled = bf16.Bool("enabled", !fp16).value_or(false);
  if (enabled && fp16) {
    block->Refuse("enabled", "bfloat16 and fp16 modes cannot be simultaneously enabled");
  }
  return enabled;
}

// "auto" is fp16 unless bf16 is requested explicitly.
bool ReadFp16Enabled(const DeepSpeedValues& file, const std::optional<ConfigBlock>& fp16) {
  const std::string precision = ReadNeoxPrecision(file.block);
  std::vector<std::string> unused;
  const std::optional<ConfigBlock> bf16 = Bf16Table(file.block);
  const bool bf16_asked =
      bf16 && DeepSpeedValues{*bf16, file.release, unused}.Bool("enabled", false).value_or(false);
  const bool enabled =
      fp16 &&
      DeepSpeedValues{*fp16, file.release, file.notes}.Bool("enabled", !bf16_asked).value_or(false);
  if (enabled && !precision.empty() && precision != "fp16") {
    file.block.Refuse("precision", "DeepSpeed fp16 field was set but precision conflicts");
  }
  return enabled || precision == "fp16";
}

// True if a step in bf16 whose gradients are not finite is skipped.
bool SkipsInBf16(const DeepSpeedValues& file, int64_t stage) {
  bool check = !file.release.IsBefore(kClipsByDefault);
  if (const std::optional<ConfigBlock> bf16 = Bf16Table(file.block)) {
    const DeepSpeedValues values = {*bf16, file.release, file.notes};
    check = values.Bool("check_grad_overflow", check).value_or(check);
  }
  if (stage == 0) return !file.release.IsBefore(kBf16WithoutZero);
  if (stage == 3) return !file.release.IsBefore(kChecksNorm);
  return check && !file.release.IsBefore(kPrecisionConfig);
}

// How earlier releases tell a step that is not finite; without a release the policies' own test.
std::optional<FiniteTest> EarlierFiniteTest(const DeepSpeedRelease& release, int64_t stage) {
  if (!release.IsBefore(kChecksNorm)) return std::nullopt;
  const bool elements = (stage == 1 || stage == 2) && !release.IsBefore(kChecksElements);
  return elements ? FiniteTest::kElementwise : FiniteTest::kSum;
}

// No scale, but perhaps the skipping of DeepSpeed.
void ApplyBf16(bool skips, int64_t stage, TrainingConfig& config) {
  config.formats = {"bf16"};
  config.policies = {NoScaler()};
  config.notes.push_back("bf16: no loss scaling");
  if (!skips) return;
  config.policies = {{stage == 0 ? "deepspeed-fp16-optimizer" : "deepspeed", {"loss_scale=1"}}};
  config.notes.back() += ", but a step whose gradients are not finite is skipped";
}

// torch_autocast of the engine: torch's own GradScaler in float16 without ZeRO. Returns true if it
// decides.
bool ReadTorchAutocast(const DeepSpeedValues& file, int64_t stage, bool fp16, bool bf16,
                       TrainingConfig& config) {
  const std::optional<ConfigBlock> block = file.block.Table("torch_autocast");
  if (!block || !block->Bool("enabled").value_or(false)) return false;
  if (!block->Has("dtype")) {
    block->Refuse("dtype", "torch.autocast's own type depends on the device", "a type");
  }
  const std::string format = *ReadFormat(*block, "dtype");
  if (format == "fp16" && (stage > 0 || bf16)) {
    block->Refuse("dtype", "float16 with ZeRO or bf16 has two scalers, which is not read",
                  "stage 0, or --policy torch --format fp16");
  }
  if (fp16) {
    block->Refuse("enabled", "fp16 is enabled, too: two scalers, which is not read",
                  "one of them, or --policy torch --format fp16");
  }
  if (bf16 || (format != "fp16" && format != "bf16")) return false;
  if (format == "bf16") {
    ApplyBf16(stage > 0 && !file.release.IsBefore(kChecksNorm), stage, config);
  } else {
    config.formats = {"fp16"};
    config.policies = {{"torch", {}}};
  }
  config.notes.push_back("torch_autocast: read as torch.autocast in " + format);
  return true;
}

// What 16-bit master weights ask for.
void CheckMasterWeights(const DeepSpeedValues& table, std::string_view key, int64_t stage) {
  if (table.Bool(key, false).value_or(false) && stage == 0) {
    table.block.Refuse(key, "only supported with ZeRO", "a stage of 1, 2 or 3");
  }
}

void CheckSwitches(const DeepSpeedValues& file, const DeepSpeedValues& fp16, int64_t stage) {
  fp16.Bool("auto_cast", false);
  CheckMasterWeights(fp16, "fp16_master_weights_and_grads", stage);
  const std::optional<ConfigBlock> block = Bf16Table(file.block);
  if (!block) return;
  const DeepSpeedValues bf16 = {*block, file.release, file.notes};
  bf16.Bool("immediate_grad_update", false);
  bf16.Bool("check_grad_overflow", true);
  CheckMasterWeights(bf16, "bf16_master_weights_and_grads", stage);
  CheckMasterWeights(bf16, "bf16_optimizer_states", stage);
}

}  // namespace

void ReadDeepSpeedTypes(const DeepSpeedValues& file, TrainingConfig& config) {
  static const ConfigNode empty = {ConfigNode::Kind::kTable, "", 0, {}};
  const std::optional<ConfigBlock> table = file.block.Table("fp16");
  const ConfigBlock block = table.value_or(ConfigBlock("", empty));
  const DeepSpeedValues fp16 = {block, file.release, config.notes};
  const int64_t stage = ReadZeroStage(file);
  CheckKeys(fp16, kFp16Keys);
  const bool fp16_enabled = ReadFp16Enabled(file, table);
  const bool bf16_enabled = ReadBf16(file, fp16_enabled);
  CheckSwitches(file, fp16, stage);
  const size_t notes = config.notes.size();
  config.policies = {DeepSpeedScaler(file, fp16, stage, fp16_enabled)};
  if (!fp16_enabled) {  // keys without effect need no note but that they are refused
    const auto first = config.notes.begin() + static_cast<std::ptrdiff_t>(notes);
    const auto kept = std::remove_if(first, config.notes.end(), [](const std::string& note) {
      return note.find("DeepSpeed refuses") == note.npos;
    });
    config.notes.erase(kept, config.notes.end());
  }
  if (ReadTorchAutocast(file, stage, fp16_enabled, bf16_enabled, config)) return;
  if (fp16_enabled || bf16_enabled) {
    config.finite_test = EarlierFiniteTest(file.release, stage);
    config.updates = ReadDeepSpeedUpdates(file, fp16_enabled ? "fp16" : "bf16", stage);
  }
  if (fp16_enabled) {
    config.formats = {"fp16"};
  } else if (bf16_enabled) {
    ApplyBf16(SkipsInBf16(file, stage), stage, config);
  } else {
    config.policies = {NoScaler()};
    config.notes.emplace_back(kFloat32Note);
  }
}

}  // namespace dlsim::sim
