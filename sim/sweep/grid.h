// SPDX-License-Identifier: Apache-2.0
// The points of a sweep: every combination of what is varied, or a random sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/policies.h"
#include "sim/sweep/value_list.h"

namespace dlsim::sim {

// One thing that is set or varied.
struct SweepAxis {
  std::string place;   // "--vary" or file and line, for messages
  std::string policy;  // the only policy that it is for; empty = all that have the key
  std::string key;
  ValueList values;
};

// Returns the axis of "KEY=VALUES" or "POLICY.KEY=VALUES". Throws Error (exit code 2).
SweepAxis ParseAxis(std::string_view text, std::string_view place);

// Returns the axis of "KEY=VALUE", whose value is taken as it is.
SweepAxis ParseSetting(std::string_view text, std::string_view place);

// The names that are varied like parameters, but belong to no policy.
inline constexpr std::string_view kFormatKey = "format", kPolicyKey = "policy",
                                  kRoundingKey = "rounding";

struct SweepGrid {
  std::vector<std::string> formats, policies, roundings;
  std::vector<SweepAxis> settings;  // of one value
  std::vector<SweepAxis> axes;
  std::optional<uint64_t> random = {};  // number of points drawn, instead of all combinations
  uint64_t seed = 0;
  uint64_t limit = 1'000'000;  // of points
};

// Moves the axes of formats, policies and roundings to where they belong. Throws Error (exit code
// 2) for what is given in both ways.
void SortAxes(SweepGrid& grid);

struct GridPoint {
  size_t format = 0, rounding = 0;  // positions in the grid's lists
  const PolicyInfo* policy = nullptr;
  std::vector<std::string> values = {};  // of each axis; empty where the policy does not take it
};

// Returns all points. Throws Error (exit code 2) for unknown names, with a suggestion, for settings
// and axes that no policy takes, and for too many points.
std::vector<GridPoint> PointsOf(const SweepGrid& grid);

// Returns the parameters of a point's policy.
ParameterMap ParametersOf(const SweepGrid& grid, const GridPoint& point);

// Returns what a TOML file says (docs/sweep.md). Throws Error: exit code 3 if it cannot be read, 2
// for a bad one, naming the line.
SweepGrid ReadGridFile(const std::string& path);

}  // namespace dlsim::sim
