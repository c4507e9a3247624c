// SPDX-License-Identifier: Apache-2.0
// What a configuration file holds, whatever its language, and the builder that limits it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dlsim::sim {

struct ConfigEntry;

// One value, with its line in the file (from 1; 0 = unknown).
struct ConfigNode {
  enum class Kind : uint8_t { kNull, kBool, kNumber, kText, kList, kTable };

  Kind kind = Kind::kNull;
  std::string text;  // of a scalar; "true" or "false"; a number as ParseNumber reads it
  int line = 0;
  std::vector<ConfigEntry> entries;  // of a table, or of a list, whose keys are empty

  // Returns the value of a key of a table, the first of several, or nullptr.
  const ConfigNode* Find(std::string_view key) const;

  // Returns the value at keys that are joined by dots, one table in another, or nullptr.
  const ConfigNode* FindPath(std::string_view path) const;
};

struct ConfigEntry {
  std::string key;
  ConfigNode value;
};

// What a value takes: how many values, itself included, and bytes of keys and texts.
struct ConfigSize {
  size_t nodes = 0, bytes = 0;
};
ConfigSize SizeOf(const ConfigNode& node);

// Returns `FILE` or `FILE:LINE` for a message.
std::string ConfigPlace(std::string_view file, int line);

// What the builder does with a key that is given twice in a table. Those kept are refused by who
// reads them (ConfigBlock).
enum class DuplicateKeys : uint8_t { kRefuse, kKeep };

// Builds a tree from the events of a parser. Throws Error (exit code 2) for what is too large, too
// deep or has a key twice.
class ConfigTreeBuilder {
 public:
  static constexpr size_t kMaxDepth = 64;
  static constexpr size_t kMaxNodes = 20'000;           // a hundred times what training files hold
  static constexpr size_t kMaxBytes = size_t{4} << 20;  // four times the largest file

  ConfigTreeBuilder(std::string_view file, DuplicateKeys duplicates)
      : file_(file), duplicates_(duplicates) {}

  void Scalar(ConfigNode::Kind kind, std::string text, int line);
  void Open(ConfigNode::Kind kind, int line);  // a list or a table
  void Key(std::string key);                   // of the next value in the open table
  void Close();

  // Adds a copy of a value, all of which counts again.
  void Copy(const ConfigNode& node, int line);

  // Counts values that are kept elsewhere.
  void Count(ConfigSize size, int line);

  ConfigNode& open_node() { return open_.back().node; }
  const ConfigNode& last() const;  // the value that was completed last
  ConfigNode Take() { return std::move(root_); }

  // Throws Error (exit code 2) that names the file and the line.
  [[noreturn]] void Fail(int line, std::string_view problem, std::string_view expected = {},
                         std::string_view got = {}) const;

 private:
  struct OpenNode {
    ConfigNode node;
    std::string key;
  };

  void Add(ConfigNode node);

  std::string file_;
  DuplicateKeys duplicates_;
  std::vector<OpenNode> open_;
  ConfigNode root_;
  ConfigSize size_;
};

}  // namespace dlsim::sim
