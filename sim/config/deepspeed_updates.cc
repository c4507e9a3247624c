// SPDX-License-Identifier: Apache-2.0
// Compared with DeepSpeed 0.19.8: runtime/engine.py, runtime/base_optimizer.py and
// runtime/zero/stage_1_and_2.py.
#include "sim/config/deepspeed_updates.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "sim/config/half_precision.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

// A table inside of the file, empty where there is none.
ConfigBlock TableAt(const ConfigBlock& file, std::string_view path) {
  static const ConfigNode empty = {Kind::kTable, "", 0, {}};
  const ConfigNode* node = file.node().FindPath(path);
  const bool is_table = node != nullptr && node->kind == Kind::kTable;
  return ConfigBlock(file.file(), is_table ? *node : empty);
}

bool IsAdam(const ConfigBlock& file) {
  const std::string name = Lowered(ClearKeys(TableAt(file, "optimizer")).Text("type").value_or(""));
  return name == "adam" || name == "adamw";
}

// As Python takes a value: null, 0 and no text are false.
bool IsTrue(const ConfigBlock& block, std::string_view key, bool otherwise) {
  const ConfigNode* value = block.node().Find(key);
  if (value == nullptr) return otherwise;
  switch (value->kind) {
    case Kind::kNull:
      return false;
    case Kind::kBool:
      return value->text == "true";
    case Kind::kNumber:
      return ClearKeys(block).Number(key) != 0;
    case Kind::kText:
      return !value->text.empty();
    default:
      return !value->entries.empty();
  }
}

// A switch of the table of a type, as DeepSpeed converts it; off where it is absent.
bool IsOn(const DeepSpeedValues& file, const std::string& type, const std::string& key) {
  const ConfigBlock table = TableAt(file.block, type);
  std::vector<std::string> noted;  // with the types
  return DeepSpeedValues{table, file.release, noted}.Bool(key, false).value_or(false);
}

// DeepSpeed's Adam keeps its states in the format of what it updates; on a CPU they are float32
// unless the file asks for less.
std::optional<std::string> StateFormat(const DeepSpeedValues& file, const std::string& master,
                                       const std::string& type) {
  if (master != kFloat32Name && IsOn(file, type, "bf16_optimizer_states")) return master;
  if (!IsAdam(file.block)) return std::nullopt;
  if (master == kFloat32Name) return master;
  const ConfigBlock settings = TableAt(file.block, "optimizer.params");
  if (IsTrue(settings, "torch_adam", false)) return master;
  const ClearKeys params(settings);
  if (!params.Has("fp32_optimizer_states")) return std::string(kFloat32Name);
  const std::optional<bool> wide = params.Switch("fp32_optimizer_states");
  if (!wide) return std::nullopt;
  return *wide ? std::string(kFloat32Name) : master;
}

// Sums over ranks; those of sequence parallelism have a type of their own.
std::optional<std::string> ReduceFormat(const ConfigBlock& file, const std::string& type) {
  const ClearKeys keys(file);
  for (const std::string_view other : {"sequence_parallel_size", "fp32_allreduce"}) {
    if (keys.Has(other)) return std::nullopt;
  }
  return keys.FormatOr("communication_data_type", type);
}

// The learning rate at its highest; schedules that are not known leave it open.
std::optional<double> LearningRate(const ConfigBlock& file, const ClearKeys& params) {
  const ClearKeys scheduler(TableAt(file, "scheduler"));
  const std::optional<double> own = params.NumberOr("lr", 1e-3);
  if (!ClearKeys(file).Has("scheduler")) return own;
  const std::string type = scheduler.Text("type").value_or("");
  if (type == "WarmupCosineLR") return own;
  if (type != "WarmupLR" && type != "WarmupDecayLR") return std::nullopt;
  return ClearKeys(TableAt(file, "scheduler.params")).Number("warmup_max_lr");
}

// Adam decays as AdamW does, unless adam_w_mode is off, also where torch_adam has PyTorch's class.
UpdateSettings DeepSpeedAdam(const ConfigBlock& file) {
  if (!IsAdam(file)) return {};
  const ConfigBlock settings = TableAt(file, "optimizer.params");
  const bool coupled = Lowered(*ClearKeys(TableAt(file, "optimizer")).Text("type")) == "adam" &&
                       !IsTrue(settings, "adam_w_mode", true);
  const ClearKeys params(settings);
  return {.lr = LearningRate(file, params),
          .beta1 = params.ItemOr("betas", 0, 0.9),
          .beta2 = params.ItemOr("betas", 1, 0.999),
          .eps = params.NumberOr("eps", 1e-8),
          .weight_decay = params.NumberOr("weight_decay", 0.0),
          .decoupled = !coupled};
}

}  // namespace

UpdateRules ReadDeepSpeedUpdates(const DeepSpeedValues& file, std::string_view type,
                                 int64_t stage) {
  // Earlier releases had another optimizer there.
  if (type == "bf16" && stage == 0 && file.release.IsBefore(kBf16WithoutZero)) return {};
  const std::string name(type);
  const bool half = IsOn(file, name, name + "_master_weights_and_grads");
  const std::string master = half ? name : std::string(kFloat32Name);
  UpdateRules rules = {.formats = MasterFormats(type), .settings = DeepSpeedAdam(file.block)};
  rules.formats.master = master;
  rules.formats.first = rules.formats.second = StateFormat(file, master, name);
  rules.formats.gradients =
      ClearKeys(TableAt(file.block, "data_types")).FormatOr("grad_accum_dtype", name);
  rules.formats.reduce = ReduceFormat(file.block, name);
  return rules;
}

}  // namespace dlsim::sim
