// SPDX-License-Identifier: Apache-2.0
#include "sim/base/source_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dlsim/error.h"
#include "sim/base/quantity.h"

namespace dlsim::sim {

Json ProfileNames(const ProfileSettings& settings) {
  Json mantissas = Json::array(), formats = Json::array();
  for (const float mantissa : settings.mantissas) mantissas.push_back(mantissa);
  for (const NamedScaledFormat& format : settings.scaled) formats.push_back(format.name);
  return {{"mantissas", mantissas}, {"scaled_formats", formats}};
}

std::string DescribeProfile(const ProfileFacts& profile, uint64_t file_bytes) {
  const ProfileSettings& settings = profile.settings;
  std::string text =
      fmt::format("trace bytes: {} ({:.3g} times the profile)\n", profile.trace_bytes,
                  static_cast<double>(profile.trace_bytes) / static_cast<double>(file_bytes));
  text += fmt::format("accumulation: {}", NameOf(settings.accumulation));
  if (settings.accumulate_steps > 1) {
    text += fmt::format(", {} recorded steps make one", settings.accumulate_steps);
  }
  text += "\n";
  const auto add = [&](const char* title, const auto& items, const auto& text_of) {
    if (items.empty()) return;
    std::string list;
    for (const auto& item : items) list += (list.empty() ? "" : ", ") + text_of(item);
    text += std::string(title) + ": " + list + "\n";
  };
  add("loss scales next to powers of two", settings.mantissas,
      [](float mantissa) { return fmt::format("{} * 2^k", mantissa); });
  add("scaled formats", settings.scaled, [](const NamedScaledFormat& one) { return one.name; });
  if (settings.tensors != "*") text += "tensors: " + Quoted(settings.tensors) + "\n";
  return text;
}

Json JsonTrace(const SourceFacts& facts, std::span<const std::string> paths) {
  Json object;
  object["paths"] = Json(paths);
  object["steps"] = facts.steps;
  object["first_step"] = facts.first_step;
  object["last_step"] = facts.last_step;
  object["file_bytes"] = facts.file_bytes;
  object["description"] = facts.description;
  if (facts.profile) {
    object["profile"] = true;
    object["trace_bytes"] = facts.profile->trace_bytes;
    object.update(ProfileNames(facts.profile->settings));
  }
  return object;
}

}  // namespace dlsim::sim
