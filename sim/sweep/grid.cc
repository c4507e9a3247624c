// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/grid.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/suggest.h"
#include "sim/config/config_block.h"
#include "sim/config/config_file.h"
#include "sim/policies/policy_settings.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {
namespace {

using PolicyList = std::vector<const PolicyInfo*>;

SweepAxis SplitAxis(std::string_view text, std::string_view place, std::string_view& values) {
  const size_t equals = text.find('=');
  if (equals == text.npos || equals == 0) {
    throw UsageError(place, "not a setting", "KEY=VALUES", Quoted(text));
  }
  values = text.substr(equals + 1);
  const std::string_view name = text.substr(0, equals);
  // Names of policies may contain dots, keys do not.
  const size_t dot = name.rfind('.');
  SweepAxis axis = {std::string(place), "", std::string(name), {}};
  if (dot == name.npos) return axis;
  axis.policy = FindPolicy(name.substr(0, dot)).name;
  axis.key = name.substr(dot + 1);
  return axis;
}

bool Takes(const PolicyInfo& policy, const SweepAxis& axis) {
  if (!axis.policy.empty() && axis.policy != policy.name) return false;
  const std::vector<std::string> keys = ParameterSettings().keys(policy);
  return std::ranges::find(keys, axis.key) != keys.end();
}

// Throws unless some policy takes the axis.
void RequireTaken(const SweepAxis& axis, const PolicyList& policies) {
  std::vector<std::string> keys;
  for (const PolicyInfo* policy : policies) {
    if (Takes(*policy, axis)) return;
    if (!axis.policy.empty() && axis.policy != policy->name) continue;
    for (std::string& key : ParameterSettings().keys(*policy)) keys.push_back(std::move(key));
  }
  if (keys.empty() && !axis.policy.empty()) {
    throw UsageError(axis.place, "policy " + axis.policy + " is not in the sweep",
                     "--policy " + axis.policy);
  }
  std::ranges::sort(keys);
  keys.erase(std::ranges::unique(keys).begin(), keys.end());
  const std::vector<std::string_view> known(keys.begin(), keys.end());
  const std::string problem = "unknown parameter " + Quoted(axis.key);
  throw UsageError(axis.place, WithSuggestion(problem, axis.key, known), OneOf(known));
}

// Returns the positions of the axes that a policy takes; one that names it wins over one for all.
std::vector<size_t> TakenBy(const PolicyInfo& policy, const std::vector<SweepAxis>& axes) {
  std::vector<size_t> taken;
  for (size_t a = 0; a < axes.size(); ++a) {
    const bool replaced = axes[a].policy.empty() && std::ranges::any_of(axes, [&](const auto& own) {
                            return own.policy == policy.name && own.key == axes[a].key;
                          });
    if (!replaced && Takes(policy, axes[a])) taken.push_back(a);
  }
  return taken;
}

// How many points one policy has.
double CountFor(const SweepGrid& grid, const PolicyInfo& policy) {
  double count = static_cast<double>(grid.formats.size() * grid.roundings.size());
  for (const size_t a : TakenBy(policy, grid.axes)) {
    count *= static_cast<double>(grid.axes[a].values.count());
  }
  return count;
}

void RequireWithinLimit(const SweepGrid& grid, const PolicyList& policies) {
  double count = 0;
  for (const PolicyInfo* policy : policies) count += CountFor(grid, *policy);
  if (grid.random) count = static_cast<double>(*grid.random);
  if (count <= static_cast<double>(grid.limit)) return;
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", count);
  throw UsageError("--vary", std::string(text) + " runs",
                   "at most " + std::to_string(grid.limit) +
                       "; --limit N allows more, --random N takes a sample");
}

void AddCombinations(const SweepGrid& grid, GridPoint point, std::vector<GridPoint>& points) {
  const std::vector<size_t> taken = TakenBy(*point.policy, grid.axes);
  std::vector<size_t> counts, at(taken.size());
  for (const size_t a : taken) counts.push_back(grid.axes[a].values.count());
  while (true) {
    for (size_t i = 0; i < taken.size(); ++i) {
      point.values[taken[i]] = grid.axes[taken[i]].values.at(at[i]);
    }
    points.push_back(point);
    size_t i = taken.size();  // the last axis changes first
    while (i > 0 && ++at[i - 1] == counts[i - 1]) at[--i] = 0;
    if (i == 0) return;
  }
}

std::vector<GridPoint> Sample(const SweepGrid& grid, const PolicyList& policies) {
  SweepRandom random(grid.seed);
  std::vector<GridPoint> points;
  while (points.size() < *grid.random) {
    GridPoint point = {
        DrawBelow(grid.formats.size(), random), DrawBelow(grid.roundings.size(), random),
        policies[DrawBelow(policies.size(), random)], std::vector<std::string>(grid.axes.size())};
    for (const size_t a : TakenBy(*point.policy, grid.axes)) {
      point.values[a] = DrawValue(grid.axes[a].values, random);
    }
    points.push_back(std::move(point));
  }
  return points;
}

std::vector<std::string> AllValues(const ValueList& list) {
  std::vector<std::string> values;
  for (const ValueItem& item : list.items) {
    values.insert(values.end(), item.values.begin(), item.values.end());
  }
  return values;
}

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

SweepAxis ParseAxis(std::string_view text, std::string_view place) {
  std::string_view values;
  SweepAxis axis = SplitAxis(text, place, values);
  axis.values = ParseValueList(values, axis.place + ": " + Printable(axis.key));
  return axis;
}

SweepAxis ParseSetting(std::string_view text, std::string_view place) {
  std::string_view value;
  SweepAxis axis = SplitAxis(text, place, value);
  axis.values.items.push_back({{std::string(value)}});
  return axis;
}

void SortAxes(SweepGrid& grid) {
  const auto take = [&](std::string_view key, std::vector<std::string>& list) {
    for (auto axis = grid.axes.begin(); axis != grid.axes.end();) {
      if (axis->key != key || !axis->policy.empty()) {
        ++axis;
        continue;
      }
      if (!list.empty()) throw UsageError(axis->place, std::string(key) + " is given twice");
      list = AllValues(axis->values);
      axis = grid.axes.erase(axis);
    }
  };
  take(kFormatKey, grid.formats);
  take(kPolicyKey, grid.policies);
  take(kRoundingKey, grid.roundings);
}

std::vector<GridPoint> PointsOf(const SweepGrid& grid) {
  const PolicyList policies = NamedPolicies(grid.policies);
  for (const SweepAxis& axis : grid.settings) RequireTaken(axis, policies);
  for (const SweepAxis& axis : grid.axes) RequireTaken(axis, policies);
  RequireWithinLimit(grid, policies);
  if (grid.random) return Sample(grid, policies);
  std::vector<GridPoint> points;
  for (size_t format = 0; format < grid.formats.size(); ++format) {
    for (size_t rounding = 0; rounding < grid.roundings.size(); ++rounding) {
      for (const PolicyInfo* policy : policies) {
        AddCombinations(
            grid, {format, rounding, policy, std::vector<std::string>(grid.axes.size())}, points);
      }
    }
  }
  return points;
}

ParameterMap ParametersOf(const SweepGrid& grid, const GridPoint& point) {
  std::vector<std::string> settings;
  for (const size_t s : TakenBy(*point.policy, grid.settings)) {
    settings.push_back(grid.settings[s].key + "=" + grid.settings[s].values.at(0));
  }
  for (size_t a = 0; a < grid.axes.size(); ++a) {
    if (!point.values[a].empty()) settings.push_back(grid.axes[a].key + "=" + point.values[a]);
  }
  return ResolveParameters(*point.policy, settings);
}

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
