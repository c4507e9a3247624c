// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/sim/replay.h"
#include "sim/base/parse.h"
#include "sim/base/quantity.h"
#include "sim/policies/policy.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {
namespace {

constexpr size_t kMaxValues = 1'000'000;

// Returns the exponent of "2^E".
std::optional<int> PowerOfTwo(std::string_view text, std::string_view place) {
  if (!text.starts_with("2^")) return std::nullopt;
  const double value = ParseNumber(text, place);
  return value > 0 && std::isfinite(value) ? std::optional(std::ilogb(value)) : std::nullopt;
}

// Adds the numbers of a range, whose ends are separated at `dots`.
void AddRange(std::string_view text, size_t dots, std::string_view place, ValueList& list) {
  const auto refuse = [&](std::string_view problem) {
    throw UsageError(place, problem, "2^A..2^B, A..B/STEP or A..B*FACTOR", Quoted(text));
  };
  const std::string_view first = text.substr(0, dots), rest = text.substr(dots + 2);
  const size_t sign = rest.find_first_of("/*");
  const std::string_view last = rest.substr(0, sign);
  const double low = ParseNumber(first, place), high = ParseNumber(last, place);
  if (low > high) refuse("a range that ends before it begins");
  if (sign == rest.npos) {
    const std::optional<int> from = PowerOfTwo(first, place), to = PowerOfTwo(last, place);
    if (!from || !to) refuse("a range without a step");
    for (int e = *from; e <= *to; ++e) list.texts.push_back("2^" + std::to_string(e));
    return;
  }
  const double by = ParseNumber(rest.substr(sign + 1), place);
  const bool adds = rest[sign] == '/';
  if (adds ? !(by > 0) : !(by > 1 && low > 0)) refuse("a range that does not grow");
  // The last one counts as reached in spite of rounding errors.
  const double steps = adds ? (high - low) / by : std::log(high / low) / std::log(by);
  if (!(steps < static_cast<double>(kMaxValues))) {
    throw UsageError(place, "too many values", "at most " + std::to_string(kMaxValues),
                     Quoted(text));
  }
  const auto count = static_cast<size_t>(std::floor(steps + 1e-9)) + 1;
  const auto is_integer = [](double number) { return number == std::rint(number); };
  list.ranges.push_back({list.texts.size(), count, low, high, !adds,
                         is_integer(low) && is_integer(high) && is_integer(by)});
  for (size_t i = 0; i < count; ++i) {
    const double n = static_cast<double>(i);
    list.texts.push_back(NumberText(adds ? low + n * by : low * std::pow(by, n)));
  }
}

using Placed = std::vector<std::pair<std::string, std::string>>;  // FILE:LINE and KEY=VALUES

double DrawUnit(SweepRandom& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

// Returns a number below `bound`; the same on every machine, unlike that of <random>.
size_t DrawBelow(size_t bound, SweepRandom& random) {
  const auto place = static_cast<size_t>(DrawUnit(random) * static_cast<double>(bound));
  return std::min(place, bound - 1);
}

using PolicyList = std::vector<const PolicyInfo*>;

bool Takes(const PolicyInfo& policy, const SweepAxis& axis) {
  if (!axis.policy.empty() && axis.policy != policy.name) return false;
  return FindParameter(policy, axis.key) != nullptr;
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
  throw UnknownKey(axis.place, "unknown parameter " + Quoted(axis.key), axis.key, std::move(keys));
}

// Returns the positions of the axes that a policy takes; one that names it wins over one for all.
std::vector<size_t> TakenBy(const PolicyInfo& policy, const std::vector<SweepAxis>& axes) {
  std::vector<size_t> taken;
  for (size_t a = 0; a < axes.size(); ++a) {
    const bool replaced = axes[a].policy.empty() && std::ranges::any_of(axes, [&](const auto& own) {
                            return own.policy == policy.name && own.key == axes[a].key;
                          });
    if (replaced || !Takes(policy, axes[a])) continue;
    if (std::ranges::any_of(taken, [&](size_t b) { return axes[b].key == axes[a].key; })) {
      throw UsageError(policy.name, "parameter " + Printable(axes[a].key) + " is given twice");
    }
    taken.push_back(a);
  }
  return taken;
}

// The value of an axis's key among those of a point, which are in the order of the keys.
std::string& ValueOf(const SweepAxis& axis, std::span<const std::string> keys, GridPoint& point) {
  return point.values[static_cast<size_t>(std::ranges::find(keys, axis.key) - keys.begin())];
}

// Adds all combinations of what the point's policy takes.
void AddCombinations(const SweepGrid& grid, std::span<const std::string> keys, GridPoint point,
                     std::vector<GridPoint>& points) {
  const std::vector<size_t> taken = TakenBy(*point.policy, grid.axes);
  std::vector<size_t> at(taken.size());
  while (true) {
    for (size_t i = 0; i < taken.size(); ++i) {
      const SweepAxis& axis = grid.axes[taken[i]];
      ValueOf(axis, keys, point) = axis.values.texts[at[i]];
    }
    points.push_back(point);
    size_t i = taken.size();  // the last axis changes first
    while (i > 0 && ++at[i - 1] == grid.axes[taken[i - 1]].values.texts.size()) at[--i] = 0;
    if (i == 0) return;
  }
}

// Counts a refused point with those of its policy for the same reason.
void Refuse(std::string_view policy, const std::string& reason, SweepPlan& plan) {
  const auto without_numbers = [](std::string text) {  // which differ from point to point
    std::erase_if(text, [](char c) {
      return std::string_view("0123456789.e+-").find(c) != std::string_view::npos;
    });
    return text;
  };
  const auto found = std::ranges::find_if(plan.refused, [&](const RefusedPoints& points) {
    return points.policy == policy && without_numbers(points.reason) == without_numbers(reason);
  });
  if (found == plan.refused.end()) return plan.refused.push_back({std::string(policy), reason, 1});
  ++found->count;
}

void RequirePoints(const SweepPlan& plan) {
  if (!plan.points.empty()) return;
  if (plan.refused.empty()) throw UsageError("sweep", "no runs", "--random 1 or more");
  throw UsageError("policy " + plan.refused.front().policy,
                   "every run was refused: " + plan.refused.front().reason);
}

}  // namespace

ValueList ParseValueList(std::string_view text, std::string_view place) {
  ValueList list;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    if (item.empty()) throw UsageError(place, "an empty value", "values separated by commas");
    const size_t dots = item.find("..");
    if (dots == item.npos) {
      list.texts.emplace_back(item);
    } else {
      AddRange(item, dots, place, list);
    }
    if (comma == text.npos) return list;
    text.remove_prefix(comma + 1);
  }
}

std::string DrawValue(const ValueList& list, SweepRandom& random) {
  const size_t place = DrawBelow(list.texts.size(), random);
  for (const ValueRange& range : list.ranges) {
    if (place < range.first || place >= range.first + range.count) continue;
    const double share = DrawUnit(random);
    const double value = range.geometric ? range.low * std::pow(range.high / range.low, share)
                                         : range.low + (range.high - range.low) * share;
    const double within = std::clamp(value, range.low, range.high);
    return NumberText(range.integers ? std::rint(within) : within);
  }
  return list.texts[place];
}

SweepAxis ParseSetting(std::string_view text, std::string_view place) {
  const size_t equals = text.find('=');
  if (equals == text.npos || equals == 0) {
    throw UsageError(place, "not a setting", "KEY=VALUES", Quoted(text));
  }
  const std::string_view name = text.substr(0, equals);
  const std::string value(text.substr(equals + 1));
  // Names of policies may contain dots, keys do not.
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return {std::string(place), "", std::string(name), {{value}}};
  const std::string policy(FindPolicy(name.substr(0, dot)).name);
  return {std::string(place), policy, std::string(name.substr(dot + 1)), {{value}}};
}

SweepAxis ParseAxis(std::string_view text, std::string_view place) {
  SweepAxis axis = ParseSetting(text, place);
  const std::string values = axis.values.texts.front();
  axis.values = ParseValueList(values, axis.place + ": " + Printable(axis.key));
  return axis;
}

void SortAxes(SweepGrid& grid) {
  const auto take = [&](std::string_view key, std::vector<std::string>& list) {
    std::erase_if(grid.axes, [&](const SweepAxis& axis) {
      if (axis.key != key || !axis.policy.empty()) return false;
      if (!list.empty()) throw UsageError(axis.place, std::string(key) + " is given twice");
      list = axis.values.texts;
      return true;
    });
  };
  take("format", grid.formats);
  take("policy", grid.policies);
  take("rounding", grid.roundings);
}

std::vector<GridPoint> PointsOf(const SweepGrid& grid) {
  const PolicyList policies = NamedPolicies(grid.policies);
  for (const SweepAxis& axis : grid.settings) RequireTaken(axis, policies);
  for (const SweepAxis& axis : grid.axes) RequireTaken(axis, policies);
  double count = 0;
  for (const PolicyInfo* policy : policies) {
    auto of_policy = static_cast<double>(grid.formats.size() * grid.roundings.size());
    for (const size_t a : TakenBy(*policy, grid.axes)) {
      of_policy *= static_cast<double>(grid.axes[a].values.texts.size());
    }
    count += of_policy;
  }
  if (grid.random) count = static_cast<double>(*grid.random);
  if (count > static_cast<double>(grid.limit)) {
    throw UsageError(
        "--vary", fmt::format("{:.15g} runs", count),
        fmt::format("at most {}; --limit N allows more, --random N takes a sample", grid.limit));
  }
  const std::vector<std::string> keys = AxisKeys(grid);
  const std::vector<std::string> none(keys.size());
  std::vector<GridPoint> points;
  SweepRandom random(grid.seed);
  while (grid.random && points.size() < *grid.random) {
    GridPoint& point = points.emplace_back(
        GridPoint{DrawBelow(grid.formats.size(), random), DrawBelow(grid.roundings.size(), random),
                  policies[DrawBelow(policies.size(), random)], none});
    for (const size_t a : TakenBy(*point.policy, grid.axes)) {
      ValueOf(grid.axes[a], keys, point) = DrawValue(grid.axes[a].values, random);
    }
  }
  for (size_t format = 0; !grid.random && format < grid.formats.size(); ++format) {
    for (size_t rounding = 0; rounding < grid.roundings.size(); ++rounding) {
      for (const PolicyInfo* policy : policies) {
        AddCombinations(grid, keys, {format, rounding, policy, none}, points);
      }
    }
  }
  return points;
}

ParameterMap ParametersOf(const SweepGrid& grid, const GridPoint& point) {
  std::vector<std::string> settings;
  for (const size_t s : TakenBy(*point.policy, grid.settings)) {
    settings.push_back(grid.settings[s].key + "=" + grid.settings[s].values.texts.front());
  }
  const std::vector<std::string> keys = AxisKeys(grid);
  for (size_t k = 0; k < keys.size(); ++k) {
    if (!point.values[k].empty()) settings.push_back(keys[k] + "=" + point.values[k]);
  }
  return ResolveParameters(*point.policy, settings);
}

SweepGrid ParseGrid(const std::string& json) {
  SweepGrid grid;
  try {
    const auto file = nlohmann::json::parse(json);
    const auto names = [&](const char* key) {
      const auto found = file.find(key);
      return found == file.end() ? std::vector<std::string>()
                                 : ParseValueList(found->get<std::string>(), key).texts;
    };
    grid.formats = names("format");
    grid.policies = names("policy");
    for (const auto& [place, text] : file.value("set", Placed())) {
      grid.settings.push_back(ParseSetting(text, place));
    }
    for (const auto& [place, text] : file.value("vary", Placed())) {
      grid.axes.push_back(ParseAxis(text, place));
    }
    if (file.contains("random")) grid.random = file["random"].get<uint64_t>();
    grid.seed = file.value("seed", grid.seed);
    grid.limit = file.value("limit", grid.limit);
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("--gridded", Printable(error.what()));
  }
  return grid;
}

std::vector<std::string> AxisKeys(const SweepGrid& grid) {
  std::vector<std::string> keys;
  for (const SweepAxis& axis : grid.axes) {
    if (std::ranges::count(keys, axis.key) == 0) keys.push_back(axis.key);
  }
  return keys;
}

SweepPlan PlanSweep(const SweepGrid& grid) {
  const NoProjections notes_are_not_read;
  SweepPlan plan;
  for (const std::string& name : grid.formats) plan.formats.push_back(ParseFormat(name));
  for (GridPoint& point : PointsOf(grid)) {
    const PolicyInfo& policy = *point.policy;
    const NamedFormat& format = plan.formats[point.format];
    try {
      ReplayRun run = MakeRun(format, policy, policy.make(ParametersOf(grid, point), format.name),
                              grid.conversion);
      run.conversion.rounding = ParseNamed<Rounding>("--rounding", grid.roundings[point.rounding]);
      run.rules.finite_test = grid.finite_test.value_or(run.rules.finite_test);
      plan.runs.push_back(std::move(run));
      plan.points.push_back(std::move(point));
    } catch (const PolicyRefusal& refusal) {
      Refuse(policy.name, refusal.type + ": " + refusal.message, plan);
    }
  }
  RequirePoints(plan);
  return plan;
}

void DropRefused(std::vector<SweepOutcome>& outcomes, SweepPlan& plan) {
  size_t kept = 0;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i].refused.empty()) {
      Refuse(plan.points[i].policy->name, outcomes[i].refused, plan);
    } else if (kept++ != i) {
      outcomes[kept - 1] = std::move(outcomes[i]);
      plan.points[kept - 1] = std::move(plan.points[i]);
    }
  }
  outcomes.resize(kept);
  plan.points.resize(kept);
  RequirePoints(plan);
}

}  // namespace dlsim::sim
