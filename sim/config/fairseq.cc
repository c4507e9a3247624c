// SPDX-License-Identifier: Apache-2.0
// fairseq's configuration: Hydra's YAML, or the arguments of fairseq-train.
// Source: facebookresearch/fairseq, fairseq/dataclass/configs.py and
// fairseq/optim/fp16_optimizer.py.
#include <array>

#include "sim/config/arguments.h"
#include "sim/config/cerebras_keys.h"
#include "sim/config/dialects.h"
#include "sim/config/half_precision.h"

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 7> kFairseqMarks = {
    "common.fp16",         "common.bf16",       "common.memory_efficient_fp16",
    "fairseq.common.fp16", "--fp16-init-scale", "--fp16-scale-window",
    "--arch --criterion"};

constexpr std::array<std::string_view, 11> kFairseqKeys = {"fp16",
                                                           "bf16",
                                                           "amp",
                                                           "memory_efficient_fp16",
                                                           "memory_efficient_bf16",
                                                           "fp16_init_scale",
                                                           "fp16_scale_window",
                                                           "fp16_scale_tolerance",
                                                           "threshold_loss_scale",
                                                           "min_loss_scale",
                                                           "model_parallel_size"};

// The groups of Hydra; of a command line all of them are the whole of it.
struct Groups {
  ConfigBlock common, optimization, distributed, optimizer;
};

Precision ReadPrecision(const ConfigBlock& common) {
  const auto on = [&](std::string_view key) { return common.Bool(key).value_or(false); };
  if (on("amp")) {
    common.Refuse("amp", "PyTorch's scaler in fairseq is not supported",
                  "--policy torch --format fp16 --set init_scale=..., or fp16 instead of amp");
  }
  const bool fp16 = on("fp16") || on("memory_efficient_fp16");
  const bool bf16 = on("bf16") || on("memory_efficient_bf16");
  if (fp16 && bf16) common.Refuse("bf16", "both fp16 and bf16 are on", "at most one");
  return fp16 ? Precision::kFp16 : bf16 ? Precision::kBf16 : Precision::kFloat32;
}

// Returns update_freq, a number, a list of one, or a text such as "4" or "[4]".
int64_t ReadUpdateFreq(const ConfigBlock& block) {
  const ConfigNode* value = block.Find("update_freq");
  if (value == nullptr) return 1;
  if (value->kind != ConfigNode::Kind::kList) return *block.Integer("update_freq", 1);
  if (value->entries.size() != 1) {
    block.Refuse("update_freq", "a schedule of several frequencies is not supported",
                 "one, or --policy fairseq --set scale_window=N");
  }
  const ConfigNode item = {
      ConfigNode::Kind::kTable, "", value->line, {{"update_freq", value->entries.front().value}}};
  return *ConfigBlock(block.file(), item).Integer("update_freq", 1);
}

// Without a window, fairseq makes one of 2^14 updates of one rank.
std::string ScaleWindow(const Groups& groups, int64_t update_freq,
                        std::vector<std::string>& notes) {
  if (const auto window = groups.common.Integer("fp16_scale_window", 1)) {
    return std::to_string(*window);
  }
  const auto ranks = groups.distributed.Integer("distributed_world_size", 1);
  const int64_t parallel = groups.common.Integer("model_parallel_size", 1).value_or(1);
  const double data_parallel = static_cast<double>(ranks.value_or(1) / parallel);
  const int64_t window =
      static_cast<int64_t>(0x1p14 / data_parallel / static_cast<double>(update_freq));
  std::string note =
      "scale_window " + std::to_string(window) + " is 16384 / distributed_world_size / update_freq";
  if (!ranks) note += ", here of one rank: --set scale_window=N for others";
  notes.push_back(note);
  return std::to_string(window);
}

ConfigPolicy Scaler(const Groups& groups, int64_t update_freq, std::vector<std::string>& notes) {
  ConfigPolicy policy = {"fairseq", {}};
  const auto init = groups.common.Number("fp16_init_scale", NumberRange::kPositive);
  policy.settings.push_back("init_scale=" + (init ? init->text : "128"));
  policy.settings.push_back("scale_window=" + ScaleWindow(groups, update_freq, notes));
  AddSetting(policy, "tolerance",
             groups.common.Number("fp16_scale_tolerance", NumberRange::kNotNegative));
  AddSetting(policy, "threshold",
             groups.common.Number("threshold_loss_scale", NumberRange::kNotNegative));
  AddSetting(policy, "min_loss_scale",
             groups.common.Number("min_loss_scale", NumberRange::kNotNegative));
  return policy;
}

// Adam computes in float32 and keeps its states so, but for fp16_adam_stats, which have scales.
UpdateRules FairseqUpdates(const Groups& groups, const std::string& type) {
  const ClearKeys common(groups.common), optimization(groups.optimization);
  const ClearKeys optimizer(groups.optimizer);
  UpdateRules rules = {.formats = MasterFormats(type), .settings = {}};
  const auto efficient =
      common.Switch(type == "fp16" ? "memory_efficient_fp16" : "memory_efficient_bf16");
  if (efficient != false) rules.formats.master = std::nullopt;
  if (efficient == true) rules.formats.master = std::string(kNoMaster);
  // Fully sharded training has its own types.
  if (ClearKeys(groups.distributed).Text("ddp_backend") == "fully_sharded") rules.formats = {};
  const std::string name = optimizer.Text("_name").value_or("");
  if ((name != "adam" && optimizer.Text("optimizer") != "adam") ||
      optimizer.Has("fp16_adam_stats")) {
    rules.formats.first = rules.formats.second = std::nullopt;
    return rules;
  }
  rules.settings = {.lr = optimization.ItemOr("lr", 0, std::nullopt),
                    .beta1 = optimizer.ItemOr("adam_betas", 0, 0.9),
                    .beta2 = optimizer.ItemOr("adam_betas", 1, 0.999),
                    .eps = optimizer.NumberOr("adam_eps", 1e-8),
                    .weight_decay = optimizer.NumberOr("weight_decay", 0.0),
                    .decoupled = true};
  return rules;
}

TrainingConfig ReadGroups(const Groups& groups) {
  TrainingConfig config = {.kind = "fairseq", .formats = {}, .policies = {}};
  const Precision precision = ReadPrecision(groups.common);
  const int64_t update_freq = ReadUpdateFreq(groups.optimization);
  std::vector<std::string> notes;
  ApplyPrecision(precision, Scaler(groups, update_freq, notes), config);
  if (precision == Precision::kFp16) AddNotes(notes, config.notes);
  if (!config.formats.empty()) config.updates = FairseqUpdates(groups, config.formats[0]);
  AddNotes(groups.common.NoteMisspelt(kFairseqKeys), config.notes);
  ReadNormLimit(groups.optimization, "clip_norm", std::nullopt, config);
  config.clipping.rule = ClipRule::kFairseq;
  if (update_freq > 1) config.grad_accum_steps = update_freq;
  return config;
}

}  // namespace

bool LooksLikeFairseq(const ConfigBlock& file) { return HasMark(file.node(), kFairseqMarks); }

TrainingConfig ReadFairseq(const ConfigBlock& file, const ConfigOptions&) {
  if (IsCommandLine(file.node())) {
    const ConfigNode table = ArgumentTable(file.node());
    const ConfigBlock arguments(file.file(), table);
    return ReadGroups({arguments, arguments, arguments, arguments});
  }
  const ConfigBlock root = file.Table("fairseq").value_or(file);
  if (!root.Has("common")) root.Refuse("common", "missing", "the group with fp16");
  // A group may be named by the text of its choice alone.
  const ConfigNode* optimizer = root.Find("optimizer");
  const bool is_table = optimizer != nullptr && optimizer->kind == ConfigNode::Kind::kTable;
  return ReadGroups({TableOrEmpty(root, "common"), TableOrEmpty(root, "optimization"),
                     TableOrEmpty(root, "distributed_training"),
                     TableOrEmpty(root, is_table ? "optimizer" : "")});
}

}  // namespace dlsim::sim
