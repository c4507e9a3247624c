// SPDX-License-Identifier: Apache-2.0
// One table of a configuration file, read with types; errors name file, line and path.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/config/config_tree.h"

namespace dlsim::sim {

// A number as it stands in the file, and its value.
struct ConfigNumber {
  double value = 0;
  std::string text;
};

enum class NumberRange { kAny, kNotNegative, kPositive };

// A view: the tree must outlive it. A key whose value is null counts as absent. All readers throw
// Error (exit code 2) for a value of another type or out of range, and for a key that is given
// twice.
class ConfigBlock {
 public:
  ConfigBlock(std::string file, const ConfigNode& root) : file_(std::move(file)), node_(&root) {}

  const std::string& file() const { return file_; }
  const std::string& path() const { return path_; }
  const ConfigNode& node() const { return *node_; }
  const ConfigNode* Find(std::string_view key) const;
  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  std::optional<ConfigBlock> Table(std::string_view key) const;
  std::vector<ConfigBlock> Items(std::string_view key) const;  // the tables of a list
  std::optional<ConfigNumber> Number(std::string_view key, NumberRange range) const;
  std::optional<int64_t> Integer(std::string_view key, int64_t min,
                                 int64_t max = std::numeric_limits<int64_t>::max()) const;
  std::optional<bool> Bool(std::string_view key) const;
  std::optional<std::string> Text(std::string_view key) const;
  std::optional<std::string> Choice(std::string_view key,
                                    std::span<const std::string_view> names) const;

  // True for a number, also in quotes.
  bool HasNumber(std::string_view key) const;

  // True if the value is this text.
  bool Is(std::string_view key, std::string_view text) const;

  // Refuses keys that are not among `keys`, with a "did you mean".
  void RequireKnown(std::span<const std::string_view> keys) const;

  // One line for each key that looks like a slip for one of `keys`.
  std::vector<std::string> NoteMisspelt(std::span<const std::string_view> keys) const;

  // Throws Error (exit code 2) `FILE:LINE: PATH.KEY: problem, expected ..., got ...`; an empty key
  // stands for the table itself.
  [[noreturn]] void Refuse(std::string_view key, std::string_view problem,
                           std::string_view expected = {}, std::string_view got = {}) const;

 private:
  void RequireOnce(std::string_view key) const;
  void RequireDecided(std::string_view key, const ConfigNode& value) const;
  std::string Place(std::string_view key) const;
  std::string PathOf(std::string_view key) const;
  ConfigBlock Inner(std::string path, const ConfigNode& node) const;

  std::string file_;
  const ConfigNode* node_;
  std::string path_;
};

// Returns the table of a key, or an empty one.
ConfigBlock TableOrEmpty(const ConfigBlock& block, std::string_view key);

// Appends `more` to `notes`.
void AddNotes(std::vector<std::string> more, std::vector<std::string>& notes);

// Returns a value as messages show it: 1.5, 'text', a list.
std::string DescribeNode(const ConfigNode& node);

}  // namespace dlsim::sim
