// SPDX-License-Identifier: Apache-2.0
#include "sim/config/config_block.h"

#include <algorithm>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/base/suggest.h"
#include "sim/config/shell_script.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

// True for a number, and for a text in quotes that is one in every language: the originals convert
// it.
bool IsNumeric(const ConfigNode& node) {
  if (node.kind != Kind::kText) return node.kind == Kind::kNumber;
  const std::string& text = node.text;
  if (text.find_first_not_of("0123456789.eE+-") != text.npos) return false;
  try {
    ParseNumber(text, "");
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

ConfigBlock TableOrEmpty(const ConfigBlock& block, std::string_view key) {
  static const ConfigNode empty = {Kind::kTable, "", 0, {}};
  return block.Table(key).value_or(ConfigBlock(block.file(), empty));
}

void AddNotes(std::vector<std::string> more, std::vector<std::string>& notes) {
  for (std::string& note : more) notes.push_back(std::move(note));
}

std::string DescribeNode(const ConfigNode& node) {
  switch (node.kind) {
    case Kind::kText:
      if (node.text.find(kUnknownText) != std::string::npos) return "known only at run time";
      return Quoted(node.text);
    case Kind::kList:
      return "a list";
    case Kind::kTable:
      return "a table";
    default:
      return Printable(node.text);
  }
}

const ConfigNode* ConfigBlock::Find(std::string_view key) const {
  const ConfigNode* found = node_->Find(key);
  if (found != nullptr) RequireOnce(key);
  return found == nullptr || found->kind == Kind::kNull ? nullptr : found;
}

void ConfigBlock::RequireOnce(std::string_view key) const {
  const ConfigEntry* first = nullptr;
  for (const ConfigEntry& entry : node_->entries) {
    if (entry.key != key) continue;
    if (first != nullptr) {
      throw UsageError(ConfigPlace(file_, entry.value.line) + ": " + PathOf(key),
                       "duplicate key " + Quoted(key));
    }
    first = &entry;
  }
}

std::string ConfigBlock::PathOf(std::string_view key) const {
  const std::string name = Printable(key);
  return path_.empty() || name.empty() ? path_ + name : path_ + "." + name;
}

std::string ConfigBlock::Place(std::string_view key) const {
  const ConfigNode* value = key.empty() ? node_ : node_->Find(key);
  const std::string path = PathOf(key);
  return ConfigPlace(file_, value == nullptr ? node_->line : value->line) +
         (path.empty() ? "" : ": " + path);
}

void ConfigBlock::Refuse(std::string_view key, std::string_view problem, std::string_view expected,
                         std::string_view got) const {
  throw UsageError(Place(key), problem, expected, got);
}

ConfigBlock ConfigBlock::Inner(std::string path, const ConfigNode& node) const {
  ConfigBlock block(file_, node);
  block.path_ = std::move(path);
  return block;
}

void ConfigBlock::RequireDecided(std::string_view key, const ConfigNode& value) const {
  if (value.kind != Kind::kText || value.text.find(kUnknownText) == std::string::npos) return;
  Refuse(key, "depends on how the script is run", "the command line itself");
}

std::optional<ConfigBlock> ConfigBlock::Table(std::string_view key) const {
  const ConfigNode* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != Kind::kTable)
    Refuse(key, "wrong type", "keys with values", DescribeNode(*value));
  return Inner(PathOf(key), *value);
}

std::vector<ConfigBlock> ConfigBlock::Items(std::string_view key) const {
  std::vector<ConfigBlock> items;
  const ConfigNode* list = Find(key);
  if (list == nullptr || list->kind != Kind::kList) return items;
  for (const ConfigEntry& entry : list->entries) {
    if (entry.value.kind != Kind::kTable) Refuse(key, "wrong type", "a list of tables");
    items.push_back(Inner(PathOf(key) + "[" + std::to_string(items.size()) + "]", entry.value));
  }
  return items;
}

std::optional<ConfigNumber> ConfigBlock::Number(std::string_view key, NumberRange range) const {
  const ConfigNode* value = Find(key);
  if (value == nullptr) return std::nullopt;
  RequireDecided(key, *value);
  if (!IsNumeric(*value)) Refuse(key, "wrong type", "a number", DescribeNode(*value));
  const double number = ParseNumber(value->text, Place(key));
  if (range == NumberRange::kPositive && !(number > 0)) {
    Refuse(key, "out of range", "a number above 0", value->text);
  }
  if (range == NumberRange::kNotNegative && number < 0) {
    Refuse(key, "negative number", "0 or more", value->text);
  }
  return ConfigNumber{number, value->text};
}

std::optional<int64_t> ConfigBlock::Integer(std::string_view key, int64_t min, int64_t max) const {
  const ConfigNode* value = Find(key);
  if (value == nullptr) return std::nullopt;
  RequireDecided(key, *value);
  if (!IsNumeric(*value)) Refuse(key, "wrong type", "an integer", DescribeNode(*value));
  const int64_t number = ParseInteger(value->text, Place(key));
  if (number < min) {
    Refuse(key, "too small", "an integer of " + std::to_string(min) + " or more", value->text);
  }
  if (number > max) {
    Refuse(key, "too large", "an integer of at most " + std::to_string(max), value->text);
  }
  return number;
}

std::optional<bool> ConfigBlock::Bool(std::string_view key) const {
  const ConfigNode* value = Find(key);
  if (value == nullptr) return std::nullopt;
  RequireDecided(key, *value);
  if (value->kind != Kind::kBool) Refuse(key, "wrong type", "true or false", DescribeNode(*value));
  return value->text == "true";
}

std::optional<std::string> ConfigBlock::Text(std::string_view key) const {
  const ConfigNode* value = Find(key);
  if (value == nullptr) return std::nullopt;
  RequireDecided(key, *value);
  if (value->kind != Kind::kText) Refuse(key, "wrong type", "text", DescribeNode(*value));
  return value->text;
}

std::optional<std::string> ConfigBlock::Choice(std::string_view key,
                                               std::span<const std::string_view> names) const {
  const std::optional<std::string> text = Text(key);
  if (text && std::ranges::find(names, *text) == names.end()) {
    Refuse(key, WithSuggestion("unknown name", *text, names), OneOf(names), Quoted(*text));
  }
  return text;
}

bool ConfigBlock::HasNumber(std::string_view key) const {
  const ConfigNode* value = Find(key);
  return value != nullptr && IsNumeric(*value);
}

bool ConfigBlock::Is(std::string_view key, std::string_view text) const {
  const ConfigNode* value = Find(key);
  return value != nullptr && value->kind == Kind::kText && value->text == text;
}

void ConfigBlock::RequireKnown(std::span<const std::string_view> keys) const {
  for (const ConfigEntry& entry : node_->entries) {
    if (std::ranges::find(keys, entry.key) != keys.end()) continue;
    Refuse(entry.key, WithSuggestion("unknown key", entry.key, keys), OneOf(keys));
  }
}

std::vector<std::string> ConfigBlock::NoteMisspelt(std::span<const std::string_view> keys) const {
  std::vector<std::string> notes;
  for (const ConfigEntry& entry : node_->entries) {
    if (std::ranges::find(keys, entry.key) != keys.end()) continue;
    const std::string meant = Suggest(entry.key, keys);
    if (meant.empty()) continue;
    notes.push_back(PathOf(entry.key) + " is not read (did you mean '" + meant + "'?)");
  }
  return notes;
}

}  // namespace dlsim::sim
