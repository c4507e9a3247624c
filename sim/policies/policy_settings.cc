// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/policy_settings.h"

#include <algorithm>
#include <optional>
#include <set>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/base/quantity.h"
#include "sim/base/suggest.h"

namespace dlsim::sim {
namespace {

constexpr std::string_view kScale = "scale";

std::string_view KeyOf(std::string_view setting) { return setting.substr(0, setting.find('=')); }

// A setting as it applies to one policy.
struct OwnSetting {
  std::string text;       // KEY=VALUE
  bool specific = false;  // it named the policy
};

// Returns the setting if it is for this policy. A prefix may be the policy's name or an alias;
// names may contain dots, keys do not.
std::optional<OwnSetting> SettingFor(const PolicyInfo& policy, const std::string& setting,
                                     const SettingKind& kind, bool only_policy) {
  const std::string_view key = KeyOf(setting);
  const size_t dot = key.rfind('.');
  if (dot != std::string_view::npos) {
    if (FindPolicy(key.substr(0, dot)).name != policy.name) return std::nullopt;
    return OwnSetting{setting.substr(dot + 1), true};
  }
  const std::vector<std::string> keys = kind.keys(policy);
  if (!only_policy && std::find(keys.begin(), keys.end(), key) == keys.end()) return std::nullopt;
  return OwnSetting{setting, false};
}

std::vector<std::string> ParameterKeys(const PolicyInfo& policy) {
  std::vector<std::string> keys;
  for (const ParameterInfo& parameter : policy.parameters) {
    keys.emplace_back(parameter.name);
    keys.insert(keys.end(), parameter.aliases.begin(), parameter.aliases.end());
  }
  return keys;
}

std::vector<std::string> StateKeys(const LossScaler& scaler) {
  std::vector<std::string> keys = {std::string(kScale)};
  for (const NamedValue& field : scaler.Checkpoint()) {
    if (field.name != kScale) keys.push_back(field.name);
  }
  return keys;
}

Error UnknownField(std::string_view place, std::string_view key,
                   const std::vector<std::string>& keys) {
  const std::vector<std::string_view> known(keys.begin(), keys.end());
  return UsageError(place, WithSuggestion("unknown field of the state", key, known), OneOf(known),
                    Quoted(key));
}

}  // namespace

const SettingKind& ParameterSettings() {
  static const SettingKind kKind = {"--set", "parameter", ParameterKeys};
  return kKind;
}

const SettingKind& StateSettings() {
  static const SettingKind kKind = {"--state", "field of the state", [](const PolicyInfo& policy) {
                                      return StateKeys(policy.make({}, "").scaler);
                                    }};
  return kKind;
}

std::vector<std::string> SettingsFor(const PolicyInfo& policy,
                                     std::span<const std::string> settings, const SettingKind& kind,
                                     bool only_policy) {
  std::vector<OwnSetting> own;
  for (const std::string& setting : settings) {
    std::optional<OwnSetting> found = SettingFor(policy, setting, kind, only_policy);
    if (found) own.push_back(std::move(*found));
  }
  std::vector<std::string> texts;
  for (const OwnSetting& setting : own) {
    const auto replaces = [&](const OwnSetting& other) {
      return other.specific && KeyOf(other.text) == KeyOf(setting.text);
    };
    if (!setting.specific && std::any_of(own.begin(), own.end(), replaces)) continue;
    texts.push_back(setting.text);
  }
  return texts;
}

void RequireUsed(std::span<const PolicyInfo* const> policies, std::span<const std::string> settings,
                 const SettingKind& kind) {
  for (const std::string& setting : settings) {
    const auto takes = [&](const PolicyInfo* policy) {
      return SettingFor(*policy, setting, kind, policies.size() == 1).has_value();
    };
    if (std::any_of(policies.begin(), policies.end(), takes)) continue;
    std::vector<std::string> keys;
    for (const PolicyInfo* policy : policies) {
      for (std::string& key : kind.keys(*policy)) keys.push_back(std::move(key));
    }
    const std::string_view key = KeyOf(setting);
    const std::string problem = "unknown " + std::string(kind.noun) + " " + Quoted(key);
    throw UnknownKey(kind.option, problem, key, std::move(keys));
  }
}

void RestoreState(std::span<const std::string> state, std::string_view policy,
                  ConfiguredScaler& configured) {
  if (state.empty()) return;
  configured.initial = configured.scaler;
  LossScaler& scaler = configured.scaler;
  std::set<std::string> keys;
  const std::string scale_field = scaler.Checkpoint().front().name;
  std::vector<std::pair<std::string, double>> counters;
  for (const std::string_view setting : state) {
    std::string key(KeyOf(setting));
    const std::string place = std::string(policy).append(".").append(key);
    if (key.size() == setting.size()) {
      throw UsageError(policy, "not a setting", "KEY=VALUE", Quoted(setting));
    }
    const double value = ParseNumber(setting.substr(key.size() + 1), place);
    if (key == scale_field) key = kScale;
    if (!keys.insert(key).second) throw UsageError(place, "given twice");
    if (key == kScale) {
      if (value < 0) throw UsageError(place, "negative loss scale", "0 or more", PythonRepr(value));
      scaler.RestartAt(value);
    } else {
      counters.emplace_back(std::move(key), value);
    }
  }
  for (const auto& [key, value] : counters) {
    const std::string place = std::string(policy).append(".").append(key);
    switch (scaler.Restore(key, value)) {
      case LossScaler::Restored::kOk:
        break;
      case LossScaler::Restored::kUnknownField:
        throw UnknownField(policy, key, StateKeys(scaler));
      case LossScaler::Restored::kBadValue:
        throw UsageError(place, "not a value of this field", "an integer that fits",
                         PythonRepr(value));
    }
  }
}

}  // namespace dlsim::sim
