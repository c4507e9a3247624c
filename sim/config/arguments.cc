// SPDX-License-Identifier: Apache-2.0
#include "sim/config/arguments.h"

#include <algorithm>
#include <utility>

namespace dlsim::sim {
namespace {

bool HasAll(const ConfigNode& root, std::string_view paths) {
  while (!paths.empty()) {
    const size_t end = std::min(paths.find(' '), paths.size());
    if (root.FindPath(paths.substr(0, end)) == nullptr) return false;
    paths.remove_prefix(std::min(end + 1, paths.size()));
  }
  return true;
}

}  // namespace

ConfigNode ArgumentTable(const ConfigNode& table) {
  ConfigNode arguments = table;
  for (ConfigEntry& entry : arguments.entries) {
    entry.key.erase(0, std::min(entry.key.find_first_not_of('-'), entry.key.size()));
    std::ranges::replace(entry.key, '-', '_');
  }
  return arguments;
}

bool HasMark(const ConfigNode& root, std::span<const std::string_view> marks) {
  return std::ranges::any_of(marks, [&](std::string_view mark) { return HasAll(root, mark); });
}

bool IsCommandLine(const ConfigNode& root) {
  return !root.entries.empty() && root.entries.front().key.starts_with("--");
}

ConfigNode ScalarNode(ConfigNode::Kind kind, std::string text) {
  return {kind, std::move(text), 0, {}};
}

ConfigNode TableNode(std::vector<ConfigEntry> entries) {
  return {ConfigNode::Kind::kTable, "", 0, std::move(entries)};
}

}  // namespace dlsim::sim
