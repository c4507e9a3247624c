// SPDX-License-Identifier: Apache-2.0
// verl's configuration, as Hydra composes it, or the command line with its overrides: the training
// of the actor, or supervised fine-tuning. Source: volcengine/verl, workers/actor/dp_actor.py,
// workers/fsdp_workers.py, utils/megatron/optimizer.py, utils/torch_dtypes.py and
// trainer/fsdp_sft_trainer.py.
#include <algorithm>
#include <array>

#include "dlsim/error.h"
#include "sim/config/arguments.h"
#include "sim/config/cerebras_keys.h"
#include "sim/config/dialects.h"
#include "sim/config/half_precision.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

constexpr std::array<std::string_view, 1> kActorMarks = {"actor_rollout_ref.actor"};
constexpr std::array<std::string_view, 1> kSftMarks = {"model.partial_pretrain data.train_files"};
constexpr std::array<std::string_view, 3> kStrategies = {"fsdp", "fsdp2", "megatron"};

// The names that the original knows.
constexpr std::array<std::string_view, 8> kTypeNames = {"16",   "fp16",    "float16", "32",
                                                        "fp32", "float32", "bf16",    "bfloat16"};

// Arguments of Megatron's optimizer that a file may override.
constexpr std::array<std::string_view, 5> kOverrides = {
    "loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"};

ConfigBlock TableOrEmpty(const ConfigBlock& block, std::string_view key) {
  static const ConfigNode empty = {Kind::kTable, "", 0, {}};
  return block.Table(key).value_or(ConfigBlock(block.file(), empty));
}

Precision ReadType(const ConfigBlock& block, std::string_view key) {
  const ConfigNode* value = block.Find(key);
  if (value == nullptr) return Precision::kBf16;
  if (std::ranges::count(kTypeNames, value->text) == 0) {
    block.Refuse(key, "unexpected precision", "bfloat16, float16 or float32", DescribeNode(*value));
  }
  if (value->text.starts_with("bf")) return Precision::kBf16;
  return value->text.ends_with("16") ? Precision::kFp16 : Precision::kFloat32;
}

// The type of FSDP's parameters need not be that of autocast, by which the scaler is chosen.
void NoteMixedPrecision(const ConfigBlock& fsdp, Precision precision,
                        std::vector<std::string>& notes) {
  const std::optional<ConfigBlock> mixed = fsdp.Table("mixed_precision");
  if (!mixed) return;
  if (ReadType(*mixed, "param_dtype") != precision) {
    notes.push_back(
        "mixed_precision.param_dtype is not dtype: the scaler goes by dtype, gradients of "
        "parameters are rounded to param_dtype");
  }
  if (mixed->Has("reduce_dtype") && ReadType(*mixed, "reduce_dtype") != Precision::kFloat32) {
    notes.push_back("mixed_precision.reduce_dtype is not simulated: it rounds between ranks");
  }
}

TrainingConfig ReadFsdp(const ConfigBlock& file, const ConfigBlock& actor) {
  TrainingConfig config = {.kind = "verl with FSDP", .formats = {}, .policies = {}};
  const ConfigBlock fsdp = TableOrEmpty(actor, "fsdp_config");
  const Precision type = ReadType(fsdp, "dtype");
  const bool engine = TableOrEmpty(file, "trainer").Is("use_legacy_worker_impl", "disable");
  const Precision precision = engine ? Precision::kBf16 : type;
  ApplyPrecision(precision, {"torch", {"growth_interval=400"}}, config);
  if (engine) config.notes.push_back("use_legacy_worker_impl disable: bf16, whatever dtype says");
  if (precision == Precision::kFp16) {
    config.notes.push_back("ShardedGradScaler with growth_interval 400, which the original fixes");
  }
  NoteMixedPrecision(fsdp, precision, config.notes);
  ReadNormLimit(actor, "grad_clip", 1.0, config);
  return config;
}

// The file that verl makes for Megatron's optimizer.
TrainingConfig ReadWithMegatron(const ConfigBlock& actor, const ConfigOptions& options) {
  const Precision precision = ReadType(TableOrEmpty(actor, "megatron"), "dtype");
  const ConfigBlock optimizer = TableOrEmpty(actor, "optim");
  const ConfigBlock overrides = TableOrEmpty(optimizer, "override_optimizer_config");
  ConfigNode arguments = TableNode({});
  const auto add = [&](std::string key, const ConfigNode& value) {
    arguments.entries.push_back({std::move(key), value});
  };
  if (precision != Precision::kFloat32) {
    add(precision == Precision::kFp16 ? "--fp16" : "--bf16", ScalarNode(Kind::kBool, "true"));
  }
  if (const ConfigNode* clip = optimizer.Find("clip_grad")) add("--clip-grad", *clip);
  for (const std::string_view key : kOverrides) {
    if (const ConfigNode* value = overrides.Find(key)) {
      add(std::string(key), *value);
    } else if (key == "initial_loss_scale") {
      add(std::string(key), ScalarNode(Kind::kNumber, "32768"));
    }
  }
  const ConfigNode root = TableNode({{"MODEL_ARGS", arguments}});
  TrainingConfig config = ReadMegatron(ConfigBlock(actor.file(), root), options);
  config.kind = "verl with Megatron";
  return config;
}

TrainingConfig ReadSft(const ConfigBlock& file) {
  TrainingConfig config = {.kind = "verl's fine-tuning", .formats = {}, .policies = {}};
  ApplyPrecision(Precision::kBf16, NoScaler(), config);
  ReadNormLimit(TableOrEmpty(file, "optim"), "clip_grad", 1.0, config);
  return config;
}

// The strategy of the file that a command line names and overrides; verl's own name it.
std::string DefaultStrategy(const ConfigBlock& file) {
  const auto names_megatron = [&](std::string_view key) {
    const ConfigNode* value = file.Find(key);
    return value != nullptr && value->text.find("megatron") != std::string::npos;
  };
  return names_megatron("--config-name") || names_megatron("model_engine") ? "megatron" : "fsdp";
}

void NoteBaseFile(const ConfigBlock& file, TrainingConfig& config) {
  constexpr std::array<std::string_view, 4> kOwn = {"ppo_trainer", "ppo_megatron_trainer",
                                                    "sft_trainer", "_generated_ppo_trainer"};
  const ConfigNode* name = file.Find("--config-name");
  if (name == nullptr) return;
  const std::string_view stem = std::string_view(name->text).substr(0, name->text.find(".y"));
  if (std::ranges::count(kOwn, stem) > 0) return;
  config.notes.push_back("the file of --config-name " + Quoted(name->text) +
                         " is not read: where the command line says nothing, verl's defaults hold");
}

// The number of ranks decides, and the lengths of sequences with use_dynamic_bsz.
void NoteVerl(TrainingConfig& config) {
  config.notes.push_back("the actor's training is read; the critic computes in bf16 unscaled");
  config.notes.push_back(
      "micro-steps depend on the ranks: --grad-accum-steps where a trace has them apart");
}

}  // namespace

bool LooksLikeVerl(const ConfigBlock& file) {
  const ConfigNode& root = file.node();
  if (HasMark(root, kSftMarks)) return true;
  if (!HasMark(root, kActorMarks)) return false;
  const ConfigNode* strategy = root.FindPath("actor_rollout_ref.actor.strategy");
  return strategy == nullptr || std::ranges::count(kStrategies, strategy->text) > 0;
}

TrainingConfig ReadVerl(const ConfigBlock& file, const ConfigOptions& options) {
  if (HasMark(file.node(), kSftMarks)) return ReadSft(file);
  const ConfigBlock actor = TableOrEmpty(TableOrEmpty(file, "actor_rollout_ref"), "actor");
  if (actor.node().entries.empty()) {
    file.Refuse("", "nothing of verl", "actor_rollout_ref.actor, or model.partial_pretrain");
  }
  const std::string strategy =
      actor.Choice("strategy", kStrategies).value_or(DefaultStrategy(file));
  TrainingConfig config =
      strategy == "megatron" ? ReadWithMegatron(actor, options) : ReadFsdp(file, actor);
  NoteBaseFile(file, config);
  NoteVerl(config);
  return config;
}

}  // namespace dlsim::sim
