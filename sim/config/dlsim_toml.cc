// SPDX-License-Identifier: Apache-2.0
// dlsim's own file: command line options under their own names, and [parameters] for --set.
#include <algorithm>
#include <array>

#include "dlsim/error.h"
#include "dlsim/format.h"
#include "dlsim/sim/policies.h"
#include "sim/base/suggest.h"
#include "sim/config/dialects.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

constexpr std::array<std::string_view, 7> kKeys = {
    "format",           "policy",     "parameters", "max-gradient-norm", "max-gradient-value",
    "grad-accum-steps", "finite-test"};

// Returns a text or a list of texts.
std::vector<std::string> ReadNames(const ConfigBlock& file, std::string_view key) {
  const ConfigNode* value = file.Find(key);
  if (value == nullptr) return {};
  if (value->kind != Kind::kList) return {*file.Text(key)};
  std::vector<std::string> names;
  for (const ConfigEntry& entry : value->entries) {
    if (entry.value.kind != Kind::kText) {
      file.Refuse(key, "wrong type", "a name or a list of names", DescribeNode(entry.value));
    }
    names.push_back(entry.value.text);
  }
  return names;
}

// Returns the first name of a policy; the error names the file.
std::string PolicyName(const ConfigBlock& block, std::string_view key, const std::string& name) {
  try {
    return std::string(FindPolicy(name).name);
  } catch (const Error& error) {
    block.Refuse(key, error.what());
  }
}

std::string FormatName(const ConfigBlock& file, const std::string& name) {
  try {
    return ParseFormat(name).name;
  } catch (const Error& error) {
    file.Refuse("format", error.what());
  }
}

// The value of a setting: a number, a truth value, or text such as "2^15" or "dynamic".
std::string SettingText(const ConfigBlock& block, const std::string& key, const ConfigNode& value) {
  if (value.kind == Kind::kNull || value.kind == Kind::kList || value.kind == Kind::kTable) {
    block.Refuse(key, "wrong type", "a number, a text or true or false", DescribeNode(value));
  }
  return value.text;
}

bool Takes(const PolicyInfo& policy, std::string_view key) {
  return std::ranges::any_of(policy.parameters, [&](const ParameterInfo& parameter) {
    return parameter.name == key ||
           std::ranges::find(parameter.aliases, key) != parameter.aliases.end();
  });
}

void RequireTaken(const ConfigBlock& block, std::string_view key, bool taken,
                  std::span<const ConfigPolicy> policies) {
  if (taken) return;
  std::vector<std::string_view> known;
  for (const ConfigPolicy& policy : policies) {
    for (const ParameterInfo& parameter : FindPolicy(policy.name).parameters) {
      known.push_back(parameter.name);
    }
  }
  block.Refuse(key, WithSuggestion("unknown parameter", key, known), OneOf(known));
}

// Gives a table of parameters to the policies that have them.
void AddParameters(const ConfigBlock& block, std::span<ConfigPolicy> policies) {
  for (const ConfigEntry& entry : block.node().entries) {
    if (entry.value.kind == Kind::kTable) continue;
    const std::string text = SettingText(block, entry.key, entry.value);
    bool taken = false;
    for (ConfigPolicy& policy : policies) {
      if (!Takes(FindPolicy(policy.name), entry.key)) continue;
      policy.settings.push_back(entry.key + "=" + text);
      taken = true;
    }
    RequireTaken(block, entry.key, taken, policies);
  }
}

// [parameters] is for all policies, [parameters.NAME] for one.
void ReadParameters(const ConfigBlock& parameters, std::vector<ConfigPolicy>& policies) {
  for (const ConfigEntry& entry : parameters.node().entries) {
    if (entry.value.kind != Kind::kTable) continue;
    const auto own = std::ranges::find(policies, PolicyName(parameters, entry.key, entry.key),
                                       &ConfigPolicy::name);
    if (own == policies.end()) parameters.Refuse(entry.key, "no policy of this file");
    AddParameters(*parameters.Table(entry.key), std::span(&*own, 1));
  }
  std::vector<ConfigPolicy> general;
  for (const ConfigPolicy& policy : policies) general.push_back({policy.name, {}});
  AddParameters(parameters, general);
  for (size_t i = 0; i < policies.size(); ++i) {
    for (const std::string& setting : general[i].settings) {
      const std::string prefix = setting.substr(0, setting.find('=') + 1);
      const auto same = [&](const std::string& own) { return own.starts_with(prefix); };
      if (std::ranges::any_of(policies[i].settings, same)) continue;
      policies[i].settings.push_back(setting);
    }
  }
}

}  // namespace

bool LooksLikeDlsimToml(const ConfigBlock& file) {
  const auto names = [&](std::string_view key) {
    const ConfigNode* value = file.Find(key);
    return value != nullptr && (value->kind == Kind::kText || value->kind == Kind::kList);
  };
  const auto is_known = [](const ConfigEntry& entry) {
    return std::ranges::find(kKeys, entry.key) != kKeys.end();
  };
  const auto known = std::ranges::count_if(file.node().entries, is_known);
  if (!names("policy") && !names("format")) {
    return file.Has("parameters") && static_cast<size_t>(known) == file.node().entries.size();
  }
  return 2 * static_cast<size_t>(known) >= file.node().entries.size();
}

TrainingConfig ReadDlsimToml(const ConfigBlock& file, const ConfigOptions&) {
  file.RequireKnown(kKeys);
  TrainingConfig config = {.kind = "dlsim", .formats = {}, .policies = {}};
  for (const std::string& name : ReadNames(file, "format")) {
    config.formats.push_back(FormatName(file, name));
  }
  for (const std::string& name : ReadNames(file, "policy")) {
    config.policies.push_back({PolicyName(file, "policy", name), {}});
  }
  if (const std::optional<ConfigBlock> parameters = file.Table("parameters")) {
    if (config.policies.empty()) file.Refuse("parameters", "without a policy", "policy = NAME");
    ReadParameters(*parameters, config.policies);
  }
  const auto norm = file.Number("max-gradient-norm", NumberRange::kPositive);
  const auto value = file.Number("max-gradient-value", NumberRange::kPositive);
  if (norm && value) file.Refuse("max-gradient-value", "clips a second time", "one of the two");
  if (norm) config.clipping.max_norm = norm->value;
  if (value) config.clipping.max_value = value->value;
  config.accumulate_steps = file.Integer("grad-accum-steps", 1);
  constexpr std::array kTests = {NameOf(FiniteTest::kElementwise), NameOf(FiniteTest::kGlobalNorm)};
  if (const auto test = file.Choice("finite-test", kTests)) {
    config.finite_test = ValueNamed<FiniteTest>(*test);
  }
  return config;
}

}  // namespace dlsim::sim
