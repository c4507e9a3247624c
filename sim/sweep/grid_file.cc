// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/grid_file.h"

#include <array>
#include <string_view>

#include "dlsim/error.h"
#include "sim/config/config_block.h"
#include "sim/config/config_file.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

constexpr std::array<std::string_view, 7> kKeys = {"format", "policy", "set",  "vary",
                                                   "random", "seed",   "limit"};

// Returns a scalar, or the items of a list, separated by commas.
std::string ValuesText(const ConfigBlock& block, const ConfigEntry& entry) {
  const auto scalar = [&](const ConfigNode& node) {
    const bool is_scalar =
        node.kind == Kind::kBool || node.kind == Kind::kNumber || node.kind == Kind::kText;
    if (!is_scalar) {
      block.Refuse(entry.key, "wrong type", "a number, a text, true or false, or a list of these",
                   DescribeNode(node));
    }
    return node.text;
  };
  if (entry.value.kind != Kind::kList) return scalar(entry.value);
  std::string text;
  for (const ConfigEntry& item : entry.value.entries) {
    text += (text.empty() ? "" : ",") + scalar(item.value);
  }
  return text;
}

std::vector<std::string> Names(const ConfigBlock& file, std::string_view key) {
  const ConfigNode* node = file.Find(key);
  if (node == nullptr) return {};
  const std::string text = ValuesText(file, {std::string(key), *node});
  std::vector<std::string> names;
  for (const ValueItem& item : ParseValueList(text, key).items) {
    names.insert(names.end(), item.values.begin(), item.values.end());
  }
  return names;
}

using AxisParser = SweepAxis (*)(std::string_view text, std::string_view place);

// Adds the keys of [set] or [vary]; a table inside is for the policy of its name.
void AddAxes(const std::string& path, const ConfigBlock& block, const std::string& prefix,
             AxisParser parse, std::vector<SweepAxis>& axes) {
  for (const ConfigEntry& entry : block.node().entries) {
    if (entry.value.kind == Kind::kTable && prefix.empty()) {
      AddAxes(path, *block.Table(entry.key), entry.key + ".", parse, axes);
      continue;
    }
    const std::string text = prefix + entry.key + "=" + ValuesText(block, entry);
    axes.push_back(parse(text, ConfigPlace(path, entry.value.line)));
  }
}

}  // namespace

SweepGrid ReadGridFile(const std::string& path) {
  const ConfigNode root = ReadConfigFile(path);
  const ConfigBlock file(path, root);
  file.RequireKnown(kKeys);
  SweepGrid grid;
  grid.formats = Names(file, kFormatKey);
  grid.policies = Names(file, kPolicyKey);
  const auto set = file.Table("set"), vary = file.Table("vary");
  if (set) AddAxes(path, *set, "", ParseSetting, grid.settings);
  if (vary) AddAxes(path, *vary, "", ParseAxis, grid.axes);
  const auto count = [&](std::string_view key, int64_t min) -> std::optional<uint64_t> {
    const std::optional<int64_t> value = file.Integer(key, min);
    return value ? std::optional(static_cast<uint64_t>(*value)) : std::nullopt;
  };
  grid.random = count("random", 1);
  grid.seed = count("seed", 0).value_or(grid.seed);
  grid.limit = count("limit", 1).value_or(grid.limit);
  return grid;
}

}  // namespace dlsim::sim
