// SPDX-License-Identifier: Apache-2.0
#include "sim/config/config_tree.h"

#include <algorithm>
#include <utility>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

size_t Depth(const ConfigNode& node) {
  size_t deepest = 0;
  for (const ConfigEntry& entry : node.entries) {
    deepest = std::max(deepest, Depth(entry.value));
  }
  return deepest + 1;
}

// Returns the entry whose key is given twice, or nullptr.
const ConfigEntry* FindDuplicate(const ConfigNode& table) {
  std::vector<const ConfigEntry*> sorted;
  for (const ConfigEntry& entry : table.entries) sorted.push_back(&entry);
  std::ranges::stable_sort(sorted, {}, [](const ConfigEntry* entry) { return entry->key; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->key == sorted[i - 1]->key) return sorted[i];
  }
  return nullptr;
}

}  // namespace

const ConfigNode* ConfigNode::Find(std::string_view key) const {
  if (kind != Kind::kTable) return nullptr;
  const auto found = std::ranges::find(entries, key, &ConfigEntry::key);
  return found == entries.end() ? nullptr : &found->value;
}

const ConfigNode* ConfigNode::FindPath(std::string_view path) const {
  const ConfigNode* node = this;
  while (node != nullptr && !path.empty()) {
    const size_t end = std::min(path.find('.'), path.size());
    node = node->Find(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return node;
}

std::string ConfigPlace(std::string_view file, int line) {
  return Printable(file) + (line > 0 ? ":" + std::to_string(line) : "");
}

ConfigSize SizeOf(const ConfigNode& node) {
  ConfigSize size = {1, node.text.size()};
  for (const ConfigEntry& entry : node.entries) {
    const ConfigSize of_value = SizeOf(entry.value);
    size.nodes += of_value.nodes;
    size.bytes += entry.key.size() + of_value.bytes;
  }
  return size;
}

void ConfigTreeBuilder::Fail(int line, std::string_view problem, std::string_view expected,
                             std::string_view got) const {
  throw UsageError(ConfigPlace(file_, line), problem, expected, got);
}

void ConfigTreeBuilder::Count(ConfigSize size, int line) {
  size_.nodes += size.nodes;
  size_.bytes += size.bytes;
  if (size_.nodes > kMaxNodes) {
    Fail(line, "too many values (aliases count each time)",
         "at most " + std::to_string(kMaxNodes) + " in a training configuration");
  }
  if (size_.bytes > kMaxBytes) {
    Fail(line, "too much text (aliases count each time)",
         "at most " + std::to_string(kMaxBytes) + " bytes in a training configuration");
  }
}

void ConfigTreeBuilder::Scalar(ConfigNode::Kind kind, std::string text, int line) {
  Count({1, text.size()}, line);
  Add({kind, std::move(text), line, {}});
}

void ConfigTreeBuilder::Open(ConfigNode::Kind kind, int line) {
  Count({1, 0}, line);
  if (open_.size() == kMaxDepth) {
    Fail(line, "nested too deeply", "at most " + std::to_string(kMaxDepth) + " levels");
  }
  open_.push_back({{kind, "", line, {}}, ""});
}

void ConfigTreeBuilder::Key(std::string key) {
  Count({0, key.size()}, open_.back().node.line);
  open_.back().key = std::move(key);
}

void ConfigTreeBuilder::Close() {
  ConfigNode node = std::move(open_.back().node);
  open_.pop_back();
  if (node.kind == ConfigNode::Kind::kTable && duplicates_ == DuplicateKeys::kRefuse) {
    if (const ConfigEntry* twice = FindDuplicate(node)) {
      Fail(twice->value.line, "duplicate key " + Quoted(twice->key));
    }
  }
  Add(std::move(node));
}

void ConfigTreeBuilder::Copy(const ConfigNode& node, int line) {
  Count(SizeOf(node), line);
  if (open_.size() + Depth(node) > kMaxDepth) {
    Fail(line, "nested too deeply", "at most " + std::to_string(kMaxDepth) + " levels");
  }
  Add(node);
}

void ConfigTreeBuilder::Add(ConfigNode node) {
  if (open_.empty()) {
    root_ = std::move(node);
    return;
  }
  OpenNode& parent = open_.back();
  parent.node.entries.push_back({std::exchange(parent.key, ""), std::move(node)});
}

const ConfigNode& ConfigTreeBuilder::last() const {
  return open_.empty() ? root_ : open_.back().node.entries.back().value;
}

}  // namespace dlsim::sim
