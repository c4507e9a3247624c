// SPDX-License-Identifier: Apache-2.0
#include "sim/config/hydra_overrides.h"

#include <algorithm>
#include <array>
#include <utility>

#include "sim/base/word_character.h"

namespace dlsim::sim {
namespace {

// Tables with keys that decide.
constexpr std::array<std::string_view, 3> kDecisiveTables = {"actor_rollout_ref.actor.", "engine.",
                                                             "optim."};

// Keys of these tables, at whatever level.
constexpr std::array<std::string_view, 6> kDecisiveKeys = {
    "dtype", "param_dtype", "reduce_dtype", "strategy", "grad_clip", "clip_grad"};

constexpr std::array<std::string_view, 2> kElsewhere = {"trainer.use_legacy_worker_impl",
                                                        "model_engine"};

// Choices of a whole table of verl's, and the key of that table that tells the choice.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kChoices = {
    {{"model_engine", "model_engine"}, {"engine", "engine.strategy"}}};

bool IsPathCharacter(char c) { return IsWordCharacter(c) || c == '.'; }

std::string_view WithoutQuotes(std::string_view value) {
  const bool quoted = value.size() >= 2 && value.front() == value.back() &&
                      (value.front() == '"' || value.front() == '\'');
  return quoted ? value.substr(1, value.size() - 2) : value;
}

ConfigEntry& EntryOf(ConfigNode& table, std::string_view key) {
  const auto found = std::ranges::find(table.entries, key, &ConfigEntry::key);
  if (found != table.entries.end()) return *found;
  return table.entries.emplace_back(ConfigEntry{std::string(key), {}});
}

}  // namespace

std::optional<HydraOverride> ParseOverride(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('+'), word.size()));
  const size_t equals = word.find('=');
  if (equals == word.npos || equals == 0) return std::nullopt;
  std::string_view path = word.substr(0, equals);
  if (!std::ranges::all_of(path, IsPathCharacter)) return std::nullopt;
  const auto choice = std::ranges::find(kChoices, path, [](const auto& c) { return c.first; });
  if (choice != kChoices.end()) path = choice->second;
  const bool nested = path.find('.') != path.npos && path.front() != '.' && path.back() != '.';
  if (!nested && choice == kChoices.end()) return std::nullopt;
  return HydraOverride{std::string(path), std::string(WithoutQuotes(word.substr(equals + 1)))};
}

bool DecidesVerl(std::string_view path) {
  if (std::ranges::count(kElsewhere, path) > 0) return true;
  const auto holds = [&](std::string_view table) { return path.starts_with(table); };
  if (std::ranges::none_of(kDecisiveTables, holds)) return false;
  const std::string_view key = path.substr(path.rfind('.') + 1);
  return std::ranges::count(kDecisiveKeys, key) > 0 ||
         path.find("override_optimizer_config.") != path.npos;
}

bool IsVerlProgram(std::string_view word) {
  const bool trainer = word.starts_with("verl.trainer.") ||
                       (word.find("verl/trainer/") != word.npos && word.ends_with(".py"));
  return trainer && (word.find("main_ppo") != word.npos || word.find("sft_trainer") != word.npos);
}

void SetPath(ConfigNode& root, std::string_view path, ConfigNode value) {
  ConfigNode* node = &root;
  while (true) {
    const size_t end = std::min(path.find('.'), path.size());
    ConfigNode& next = EntryOf(*node, path.substr(0, end)).value;
    if (end == path.size()) {
      next = std::move(value);
      return;
    }
    if (next.kind != ConfigNode::Kind::kTable) {
      next = {ConfigNode::Kind::kTable, "", value.line, {}};
    }
    path.remove_prefix(end + 1);
    node = &next;
  }
}

}  // namespace dlsim::sim
