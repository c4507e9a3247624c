// SPDX-License-Identifier: Apache-2.0
// verl's configuration, as Hydra composes it, or the command line with its overrides: the training
// of the actor, or supervised fine-tuning. Compared with verl 0.9.1: workers/engine/fsdp and
// workers/engine/megatron, utils/torch_dtypes.py; before 0.8 workers/actor/dp_actor.py,
// workers/fsdp_workers.py and trainer/fsdp_sft_trainer.py.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "dlsim/error.h"
#include "sim/config/arguments.h"
#include "sim/config/cerebras_keys.h"
#include "sim/config/dialects.h"
#include "sim/config/fsdp_types.h"
#include "sim/config/half_precision.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

constexpr std::array<std::string_view, 2> kVerlMarks = {"actor_rollout_ref.actor", "verl.program"};
constexpr std::array<std::string_view, 2> kSftMarks = {"model.partial_pretrain data.train_files",
                                                       "engine.strategy data.train_files"};
constexpr StackVersion kEngines = {0, 8, 0};  // in place of the workers before
constexpr std::array<std::string_view, 3> kStrategies = {"fsdp", "fsdp2", "megatron"};

// The names that the original knows.
constexpr std::array<std::string_view, 8> kTypeNames = {"16",   "fp16",    "float16", "32",
                                                        "fp32", "float32", "bf16",    "bfloat16"};

// Arguments of Megatron's optimizer that a file may override.
constexpr std::array<std::string_view, 5> kOverrides = {
    "loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"};

// Keys of verl's table that are Megatron's.
constexpr std::array<std::string_view, 3> kAdamKeys = {"lr", "weight_decay", "optimizer"};
constexpr std::array<std::string_view, 4> kAwareKeys = {
    "use_precision_aware_optimizer", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"};

Precision ReadType(const ConfigBlock& block, std::string_view key) {
  const ConfigNode* value = block.Find(key);
  if (value == nullptr) return Precision::kBf16;
  if (std::ranges::count(kTypeNames, value->text) == 0) {
    block.Refuse(key, "unexpected precision", "bfloat16, float16 or float32", DescribeNode(*value));
  }
  if (value->text.starts_with("bf")) return Precision::kBf16;
  return value->text.ends_with("16") ? Precision::kFp16 : Precision::kFloat32;
}

// The settings of torch.optim's Adam, unless the file passes others on.
UpdateSettings VerlAdam(const ConfigBlock& optimizer) {
  const ClearKeys keys(optimizer);
  const std::string name = keys.Has("optimizer") ? keys.Text("optimizer").value_or("") : "AdamW";
  const bool is_torch = !keys.Has("optimizer_impl") || keys.Text("optimizer_impl") == "torch.optim";
  if (!is_torch || keys.Has("override_optimizer_config")) return {};
  if (name != "AdamW" && name != "Adam") return {};
  return {.lr = keys.Number("lr"),
          .beta1 = keys.ItemOr("betas", 0, 0.9),
          .beta2 = keys.ItemOr("betas", 1, 0.999),
          .eps = 1e-8,
          .weight_decay = keys.NumberOr("weight_decay", 0.01),
          .decoupled = name == "AdamW"};
}

// The optimizer updates shards in model_dtype, with states like them.
UpdateRules VerlFsdpRules(const ConfigBlock& engine, const ConfigBlock& optimizer,
                          const std::string& type) {
  const std::string wide(kFloat32Name);
  const ConfigBlock mixed = TableOrEmpty(engine, "mixed_precision");
  const std::optional<std::string> shards = ClearKeys(engine).FormatOr("model_dtype", wide);
  UpdateRules rules = {
      .formats = FsdpFormats(type, ClearKeys(mixed).FormatOr("reduce_dtype", wide), shards),
      .settings = VerlAdam(optimizer)};
  if (rules.settings.beta1) rules.formats.first = rules.formats.second = shards;
  return rules;
}

void ApplyFsdpPrecision(Precision precision, TrainingConfig& config) {
  ApplyPrecision(precision, {"torch", {"growth_interval=400"}}, config);
  if (precision == Precision::kFp16) {
    config.notes.push_back("ShardedGradScaler with growth_interval 400, which the original fixes");
  }
}

// `engine`: the table with mixed_precision, whose param_dtype decides since 0.8.
TrainingConfig ReadFsdp(const ConfigBlock& engine, const ConfigBlock& optimizer) {
  TrainingConfig config = {.kind = "verl with FSDP", .formats = {}, .policies = {}};
  const ConfigBlock mixed = TableOrEmpty(engine, "mixed_precision");
  const Precision precision = ReadType(mixed, "param_dtype");
  ApplyFsdpPrecision(precision, config);
  if (!config.formats.empty()) {
    config.updates = VerlFsdpRules(engine, optimizer, config.formats.front());
  }
  if (engine.Has("dtype") && ReadType(engine, "dtype") != precision) {
    config.notes.push_back(
        "dtype has no effect with FSDP since verl 0.8: mixed_precision.param_dtype decides, "
        "bfloat16 by default (--config-version 0.7 for the older rule)");
  }
  const auto norm = optimizer.Number("clip_grad", NumberRange::kPositive);
  config.clipping.max_norm = norm ? norm->value : 1.0;
  return config;
}

// Before 0.8, dtype decided, and the actor's own type in the forks where FP16 came from.
TrainingConfig ReadLegacyFsdp(const ConfigBlock& file, const ConfigBlock& actor) {
  TrainingConfig config = {.kind = "verl with FSDP", .formats = {}, .policies = {}};
  const ConfigBlock fsdp = TableOrEmpty(actor, "fsdp_config");
  const Precision type = actor.Has("dtype") ? ReadType(actor, "dtype") : ReadType(fsdp, "dtype");
  const bool engine = TableOrEmpty(file, "trainer").Is("use_legacy_worker_impl", "disable");
  const Precision precision = engine ? Precision::kBf16 : type;
  ApplyFsdpPrecision(precision, config);
  if (engine) config.notes.push_back("use_legacy_worker_impl disable: bf16, whatever dtype says");
  if (actor.Has("dtype")) {
    config.notes.push_back("actor.dtype decides: a key of forks of verl before 0.8");
  }
  if (const auto mixed = fsdp.Table("mixed_precision")) {
    if (ReadType(*mixed, "param_dtype") != precision) {
      config.notes.push_back(
          "mixed_precision.param_dtype is not dtype: the scaler goes by dtype, gradients of "
          "parameters are rounded to param_dtype");
    }
  }
  if (!config.formats.empty()) {
    config.updates = VerlFsdpRules(fsdp, TableOrEmpty(actor, "optim"), config.formats.front());
  }
  ReadNormLimit(actor, "grad_clip", 1.0, config);
  return config;
}

// The release that wrote the file, as far as its keys tell.
bool IsLegacy(const ConfigBlock& file, const ConfigBlock& actor, const ConfigOptions& options) {
  if (options.version) return *options.version < kEngines;
  return actor.Has("dtype") || TableOrEmpty(file, "trainer").Has("use_legacy_worker_impl");
}

TrainingConfig ReadActorWithFsdp(const ConfigBlock& file, const ConfigBlock& actor,
                                 const ConfigOptions& options) {
  if (IsLegacy(file, actor, options)) return ReadLegacyFsdp(file, actor);
  TrainingConfig config =
      ReadFsdp(TableOrEmpty(actor, "fsdp_config"), TableOrEmpty(actor, "optim"));
  const auto norm = actor.Number("grad_clip", NumberRange::kAny);
  if (norm && norm->value != config.clipping.max_norm) {
    config.notes.push_back(
        "grad_clip has no effect since verl 0.8: optim.clip_grad clips, at 1.0 by default "
        "(--config-version 0.7 for the older rule)");
  }
  return config;
}

// Gradients are summed in float32, and the optimizer's types are those of the table; in float16 it
// is precision-aware whatever the table says.
void AddMegatronTypes(const ConfigBlock& optimizer, const std::string& type,
                      const std::function<void(std::string, const ConfigNode&)>& add) {
  const ConfigNode on = ScalarNode(Kind::kBool, "true");
  const bool is_aware = ClearKeys(optimizer).Switch("use_precision_aware_optimizer") == true;
  const std::optional<std::string> main =
      ClearKeys(optimizer).FormatOr("main_grads_dtype", std::string(kFloat32Name));
  if (type == "float16" || !is_aware || main == kFloat32Name) {
    add("accumulate_allreduce_grads_in_fp32", on);
  }
  for (const std::string_view key : kAdamKeys) {
    if (const ConfigNode* value = optimizer.Find(key)) add(std::string(key), *value);
  }
  const ClearKeys keys(optimizer);
  const auto add_beta = [&](size_t index, std::string name) {
    const std::optional<double> beta = keys.ItemOr("betas", index, std::nullopt);
    if (beta) add(std::move(name), ScalarNode(Kind::kNumber, fmt::format("{}", *beta)));
  };
  add_beta(0, "adam_beta1");
  add_beta(1, "adam_beta2");
  if (!is_aware || type == "float16") return;
  for (const std::string_view key : kAwareKeys) {
    if (const ConfigNode* value = optimizer.Find(key)) add(std::string(key), *value);
  }
}

// The file that verl makes for Megatron's optimizer.
TrainingConfig ReadWithMegatron(const ConfigBlock& engine, const ConfigBlock& optimizer,
                                const ConfigOptions& options) {
  constexpr std::array<std::string_view, 2> kTypes = {"bfloat16", "float16"};
  const std::string type = engine.Choice("dtype", kTypes).value_or("bfloat16");
  const ConfigBlock overrides = TableOrEmpty(optimizer, "override_optimizer_config");
  ConfigNode arguments = TableNode({});
  const auto add = [&](std::string key, const ConfigNode& value) {
    arguments.entries.push_back({std::move(key), value});
  };
  add(type == "float16" ? "--fp16" : "--bf16", ScalarNode(Kind::kBool, "true"));
  AddMegatronTypes(optimizer, type, add);
  if (const ConfigNode* clip = optimizer.Find("clip_grad")) add("--clip-grad", *clip);
  for (const std::string_view key : kOverrides) {
    if (const ConfigNode* value = overrides.Find(key)) {
      add(std::string(key), *value);
    } else if (key == "initial_loss_scale") {
      add(std::string(key), ScalarNode(Kind::kNumber, "32768"));
    }
  }
  const ConfigNode root = TableNode({{"MODEL_ARGS", arguments}});
  TrainingConfig config = ReadMegatron(ConfigBlock(engine.file(), root), options);
  config.kind = "verl with Megatron";
  return config;
}

bool IsFineTuning(const ConfigBlock& file) {
  if (HasMark(file.node(), kSftMarks)) return true;
  const ConfigNode* program = file.node().FindPath("verl.program");
  return program != nullptr && program->text.find("sft_trainer") != std::string::npos;
}

// The trainer before the engines computed in bfloat16.
TrainingConfig ReadSft(const ConfigBlock& file, const std::string& strategy,
                       const ConfigOptions& options) {
  const ConfigBlock optimizer = TableOrEmpty(file, "optim");
  const ConfigBlock engine = TableOrEmpty(file, "engine");
  TrainingConfig config = {.kind = "", .formats = {}, .policies = {}};
  if (file.node().FindPath("model.partial_pretrain") != nullptr) {
    ApplyPrecision(Precision::kBf16, NoScaler(), config);
    ReadNormLimit(optimizer, "clip_grad", 1.0, config);
  } else {
    config = strategy == "megatron" ? ReadWithMegatron(engine, optimizer, options)
                                    : ReadFsdp(engine, optimizer);
  }
  config.kind = "verl's fine-tuning";
  return config;
}

// The strategy of the file that a command line names and overrides; verl's own files name it.
std::string DefaultStrategy(const ConfigBlock& file) {
  std::string named;
  for (const std::string_view key : {"--config-name", "model_engine"}) {
    if (const ConfigNode* value = file.Find(key)) named += value->text + " ";
  }
  for (const std::string_view engine : {"megatron", "veomni", "torchtitan", "automodel"}) {
    if (named.find(engine) != named.npos) return std::string(engine);
  }
  return "fsdp";
}

// Returns the engine that trains; refuses those that are not read.
std::string ReadStrategy(const ConfigBlock& file, const ConfigBlock& owner) {
  const std::string strategy = owner.Text("strategy").value_or(DefaultStrategy(file));
  if (std::ranges::count(kStrategies, strategy) > 0) return strategy;
  owner.Refuse(owner.Has("strategy") ? "strategy" : "",
               "verl with " + Printable(strategy) + " is not read",
               "--policy static --format bf16 where it computes in bfloat16");
}

void NoteBaseFile(const ConfigBlock& file, TrainingConfig& config) {
  constexpr std::array<std::string_view, 6> kOwn = {
      "ppo_trainer",        "ppo_megatron_trainer",   "sft_trainer",
      "sft_trainer_engine", "_generated_ppo_trainer", "_generated_ppo_megatron_trainer"};
  const ConfigNode* name = file.Find("--config-name");
  if (name == nullptr) return;
  const std::string_view stem = std::string_view(name->text).substr(0, name->text.find(".y"));
  if (std::ranges::count(kOwn, stem) > 0) return;
  config.notes.push_back(
      "the file of --config-name " + Quoted(name->text) +
      " is not read: where the command line has no value, verl's defaults are taken");
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
  if (HasMark(root, kSftMarks) || root.FindPath("verl.program") != nullptr) return true;
  if (!HasMark(root, kVerlMarks)) return false;
  const ConfigNode* strategy = root.FindPath("actor_rollout_ref.actor.strategy");
  return strategy == nullptr || std::ranges::count(kStrategies, strategy->text) > 0;
}

TrainingConfig ReadVerl(const ConfigBlock& file, const ConfigOptions& options) {
  const bool tuning = IsFineTuning(file);
  if (!tuning && !HasMark(file.node(), kVerlMarks)) {
    file.Refuse("", "nothing of verl", "actor_rollout_ref.actor, or engine and data.train_files");
  }
  const ConfigBlock actor = TableOrEmpty(TableOrEmpty(file, "actor_rollout_ref"), "actor");
  const std::string strategy = ReadStrategy(file, tuning ? TableOrEmpty(file, "engine") : actor);
  if (tuning) return ReadSft(file, strategy, options);
  const ConfigBlock engine = TableOrEmpty(actor, "megatron");
  const bool is_megatron = strategy == "megatron";
  TrainingConfig config = is_megatron
                              ? ReadWithMegatron(engine, TableOrEmpty(actor, "optim"), options)
                              : ReadActorWithFsdp(file, actor, options);
  NoteBaseFile(file, config);
  NoteVerl(config);
  return config;
}

}  // namespace dlsim::sim
