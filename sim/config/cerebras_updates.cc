// SPDX-License-Identifier: Apache-2.0
// Compared with cerebras_pytorch 2.10.0: optim/AdamBase.py and optim/lr_scheduler.py.
#include "sim/config/cerebras_updates.h"

#include <algorithm>
#include <array>
#include <utility>

#include "sim/config/half_precision.h"

namespace dlsim::sim {
namespace {

// Schedules whose largest rate is an argument, and these arguments.
constexpr std::array<std::string_view, 8> kSchedules = {"constant",   "linear",      "cosinedecay",
                                                        "polynomial", "exponential", "step",
                                                        "multistep",  "sequential"};
constexpr std::array<std::string_view, 4> kRates = {"initial_learning_rate", "end_learning_rate",
                                                    "learning_rate", "val"};

// Names are LinearLR, before the trainer also Linear.
bool IsKnown(std::string name) {
  name = Lowered(std::move(name));
  if (name.ends_with("lr")) name.resize(name.size() - 2);
  return std::ranges::count(kSchedules, name) > 0;
}

// Raises `largest` to the rates of a schedule and those inside of it; false if one is not known.
bool RaiseToRates(const ConfigNode& node, const std::string& file, std::optional<double>& largest) {
  for (const ConfigEntry& entry : node.entries) {
    const bool names = entry.key.ends_with("LR");
    if (names && !IsKnown(entry.key)) return false;
    if (entry.key == "scheduler" && !IsKnown(entry.value.text)) return false;
    if (!RaiseToRates(entry.value, file, largest)) return false;
  }
  if (node.kind != ConfigNode::Kind::kTable) return true;
  const ClearKeys keys(ConfigBlock(file, node));
  for (const std::string_view key : kRates) {
    const std::optional<double> rate = keys.Number(key);
    if (rate) largest = std::max(largest.value_or(0), *rate);
  }
  return true;
}

// Of a schedule, or of the optimizer if there is none.
std::optional<double> LearningRate(const ConfigBlock& owner, std::string_view schedule,
                                   const ConfigBlock& optimizer, std::string_view rate) {
  const ConfigNode* schedules = owner.Find(schedule);
  if (schedules == nullptr) return ClearKeys(optimizer).NumberOr(rate, 1e-3);
  std::optional<double> largest = ClearKeys(owner).Number(schedule);
  return RaiseToRates(*schedules, owner.file(), largest) ? largest : std::nullopt;
}

UpdateSettings AdamOf(const ConfigBlock& optimizer, std::optional<double> rate,
                      std::string_view name) {
  if (name != "adam" && name != "adamw") return {};
  const ClearKeys keys(optimizer);
  const std::string_view decay =
      keys.Has("weight_decay_rate") ? "weight_decay_rate" : "weight_decay";
  return {.lr = rate,
          .beta1 = keys.ItemOr("betas", 0, 0.9),
          .beta2 = keys.ItemOr("betas", 1, 0.999),
          .eps = keys.NumberOr("eps", 1e-6),
          .weight_decay = keys.NumberOr(decay, 0.0),
          .decoupled = name == "adamw"};
}

}  // namespace

UpdateSettings ModelZooAdam(const ConfigBlock& init) {
  const ConfigNode* optimizer = init.Find("optimizer");
  if (optimizer == nullptr || optimizer->kind != ConfigNode::Kind::kTable ||
      optimizer->entries.size() != 1) {
    return {};
  }
  const std::string& name = optimizer->entries.front().key;
  const ConfigBlock settings = TableOrEmpty(ConfigBlock(init.file(), *optimizer), name);
  return AdamOf(settings, LearningRate(init, "schedulers", settings, "lr"), Lowered(name));
}

UpdateSettings OldModelZooAdam(const ConfigBlock& optimizer) {
  const std::string name = Lowered(ClearKeys(optimizer).Text("optimizer_type").value_or(""));
  return AdamOf(optimizer, LearningRate(optimizer, "learning_rate", optimizer, "lr"), name);
}

}  // namespace dlsim::sim
