// SPDX-License-Identifier: Apache-2.0
#include "sim/config/apply_config.h"

#include <algorithm>

#include "dlsim/error.h"
#include "sim/base/text_input.h"

namespace dlsim::sim {
namespace {

// Returns the first name of a policy's parameter, or `key` itself if it has none of that name.
std::string_view ParameterName(const PolicyInfo& policy, std::string_view key) {
  for (const ParameterInfo& parameter : policy.parameters) {
    const auto alias = std::ranges::find(parameter.aliases, key);
    if (parameter.name == key || alias != parameter.aliases.end()) return parameter.name;
  }
  return key;
}

std::string_view KeyOf(std::string_view setting) { return setting.substr(0, setting.find('=')); }

// True if a setting of the command line sets this parameter of this policy.
bool Sets(std::string_view setting, const PolicyInfo& policy, std::string_view parameter) {
  std::string_view key = KeyOf(setting);
  if (const size_t dot = key.rfind('.'); dot != key.npos) {
    if (FindPolicy(key.substr(0, dot)).name != policy.name) return false;
    key.remove_prefix(dot + 1);
  }
  return ParameterName(policy, key) == parameter;
}

}  // namespace

std::vector<std::string> SettingsOf(const ConfigPolicy& policy,
                                    std::span<const std::string> command_line) {
  const PolicyInfo& info = FindPolicy(policy.name);
  std::vector<std::string> settings;
  for (const std::string& setting : policy.settings) {
    const std::string_view parameter = ParameterName(info, KeyOf(setting));
    const auto sets = [&](const std::string& other) { return Sets(other, info, parameter); };
    if (std::ranges::none_of(command_line, sets)) settings.push_back(setting);
  }
  return settings;
}

void ApplyConfig(const TrainingConfig& config, SimulationRequest& request) {
  if (request.formats.empty()) request.formats = config.formats;
  const bool asked = !request.policies.empty();
  const std::vector<std::string> command_line = request.settings;
  for (const ConfigPolicy& policy : config.policies) {
    const PolicyInfo& info = FindPolicy(policy.name);
    // "all" stands for every policy.
    const auto same = [&](const std::string& name) {
      return name == "all" || FindPolicy(name).name == info.name;
    };
    if (asked && std::ranges::none_of(request.policies, same)) continue;
    if (!asked) request.policies.push_back(policy.name);
    for (const std::string& setting : SettingsOf(policy, command_line)) {
      request.settings.push_back(std::string(info.name) + "." + setting);
    }
  }
  if (!request.clipping.enabled() && config.clipping.enabled()) {
    request.clipping.max_norm = config.clipping.max_norm;
    request.clipping.max_value = config.clipping.max_value;
    // A file's static scale says nothing of its stack; the other policies have their own rule.
    const bool is_static = request.policies == std::vector<std::string>{"static"};
    if (!request.clip_rule && is_static) request.clip_rule = config.clipping.rule;
  }
  if (!request.finite_test) request.finite_test = config.finite_test;
}

Recipe RecipeOf(const TrainingConfig& config) {
  const bool half = std::ranges::any_of(config.policies, [](const ConfigPolicy& policy) {
    return policy.name.starts_with("deepspeed") || policy.name == "megatron";
  });
  return half ? Recipe::kHalf : Recipe::kAutocast;
}

std::string DescribeConfig(const std::string& path, const TrainingConfig& config) {
  std::string text = "config: " + Printable(InputName(path)) + " (" + config.kind + ")\n";
  for (const std::string& note : config.notes) text += "note: " + note + "\n";
  return text;
}

}  // namespace dlsim::sim
