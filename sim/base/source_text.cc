// SPDX-License-Identifier: Apache-2.0
#include "sim/base/source_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>

#include "dlsim/error.h"
#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

// Scales that are each the double of the one before.
struct Doublings {
  float first = 0, last = 0;
  size_t count = 0;
};

std::vector<Doublings> SplitIntoDoublings(const std::vector<float>& scales) {
  std::vector<Doublings> rows;
  std::map<float, size_t> open;  // the scale that would continue a row
  for (const float scale : scales) {
    const auto found = open.find(scale);
    const size_t row = found == open.end() ? rows.size() : found->second;
    if (found == open.end()) {
      rows.push_back({scale, scale, 0});
    } else {
      open.erase(found);
    }
    rows[row].last = scale;
    ++rows[row].count;
    open[scale * 2] = row;
  }
  return rows;
}

std::string ShortScale(float scale) {
  const std::string power = ScaleText(double{scale});
  return power.find('.') == std::string::npos ? power : fmt::format("{:.3g}", scale);
}

// Returns scales in short: "2^-24..2^40, 2.02e-14..2e+15 in doublings".
std::string ScalesText(const std::vector<float>& scales) {
  std::string text;
  for (const Doublings& row : SplitIntoDoublings(scales)) {
    text += text.empty() ? "" : ", ";
    text += ShortScale(row.first);
    if (row.count > 1) text += ".." + ShortScale(row.last);
    const bool power = ShortScale(row.first).find('^') != std::string::npos;
    if (row.count > 1 && !power && row.first != 1) text += " in doublings";
  }
  return text;
}

std::string Joined(const Json& names) {
  std::string text;
  for (const Json& name : names) text += (text.empty() ? "" : ", ") + name.get<std::string>();
  return text;
}

}  // namespace

Json LadderNames(const Ladder& ladder) {
  Json formats = Json::array(), roundings = Json::array(), subnormals = Json::array();
  for (const NamedFormat& format : ladder.formats) formats.push_back(format.name);
  for (const Rounding rounding : ladder.roundings) roundings.push_back(NameOf(rounding));
  for (const Subnormals rule : ladder.subnormals) subnormals.push_back(NameOf(rule));
  return {{"formats", formats}, {"roundings", roundings}, {"subnormals", subnormals}};
}

Json ScaledNames(const ProfileSettings& settings) {
  Json names = Json::array();
  for (const NamedScaledFormat& format : settings.scaled) names.push_back(format.name);
  return names;
}

std::string DescribeLadder(const Ladder& ladder, ScaleList scales) {
  const Json names = LadderNames(ladder);
  const std::string what = fmt::format("{}; {}; subnormals {}; ", Joined(names["formats"]),
                                       Joined(names["roundings"]), Joined(names["subnormals"]));
  const std::string list = ScalesText(ladder.scales);
  const size_t count = ladder.scales.size();
  if (scales == ScaleList::kWhole || list.find(", ") == std::string::npos) {
    return what + fmt::format("scales {} ({})", list, count);
  }
  const auto [least, most] = std::ranges::minmax(ladder.scales);
  return what + fmt::format("{} loss scales from {} to {} (list: dlsim info)", count,
                            ShortScale(least), ShortScale(most));
}

std::string DescribeProfile(const ProfileFacts& profile, uint64_t file_bytes) {
  const ProfileSettings& settings = profile.settings;
  std::string text = fmt::format("ladder: {}\nedges: {}\n",
                                 DescribeLadder(settings.ladder, ScaleList::kWhole), profile.edges);
  text += fmt::format("trace bytes: {} ({:.3g} times the profile)\n", profile.trace_bytes,
                      static_cast<double>(profile.trace_bytes) / static_cast<double>(file_bytes));
  text += fmt::format("accumulation: {}", NameOf(settings.accumulation));
  if (settings.accumulate_steps > 1) {
    text += fmt::format(", {} recorded steps make one", settings.accumulate_steps);
  }
  text += "\n";
  if (!settings.scaled.empty()) {
    text += "scaled formats: " + Joined(ScaledNames(settings)) + "\n";
  }
  if (settings.tensors != "*") text += "tensors: " + Quoted(settings.tensors) + "\n";
  return text;
}

void AddProfile(const ProfileFacts& profile, Json& object) {
  object["profile"] = true;
  object["trace_bytes"] = profile.trace_bytes;
  object["scaled_formats"] = ScaledNames(profile.settings);
  const Ladder& ladder = profile.settings.ladder;
  object["ladder"] = LadderNames(ladder);
  object["ladder"].update({{"scales", ScalesText(ladder.scales)},
                           {"scale_count", ladder.scales.size()},
                           {"edges", profile.edges}});
}

Json JsonTrace(const SourceFacts& facts, std::span<const std::string> paths) {
  Json object;
  object["paths"] = Json(paths);
  object["steps"] = facts.steps;
  object["first_step"] = facts.first_step;
  object["last_step"] = facts.last_step;
  object["file_bytes"] = facts.file_bytes;
  object["description"] = facts.description;
  if (facts.profile) AddProfile(*facts.profile, object);
  return object;
}

}  // namespace dlsim::sim
