// SPDX-License-Identifier: Apache-2.0
#include "sim/simulation.h"

#include <algorithm>

#include "dlsim/error.h"
#include "sim/suggest.h"

namespace dlsim {
namespace {

bool HasParameter(const PolicyInfo& policy, std::string_view key) {
  return std::any_of(policy.parameters.begin(), policy.parameters.end(), [&](const auto& p) {
    return p.name == key || std::find(p.aliases.begin(), p.aliases.end(), key) != p.aliases.end();
  });
}

std::string_view KeyOf(std::string_view setting) { return setting.substr(0, setting.find('=')); }

// A setting as it applies to one policy.
struct OwnSetting {
  std::string text;       // KEY=VALUE
  bool specific = false;  // it named the policy
};

// Returns the setting if it is for this policy. A prefix may be the policy's name or an alias;
// names may contain dots, keys do not.
std::optional<OwnSetting> SettingFor(const PolicyInfo& policy, const std::string& setting,
                                     bool only_policy) {
  const std::string_view key = KeyOf(setting);
  const size_t dot = key.rfind('.');
  if (dot != std::string_view::npos) {
    if (FindPolicy(key.substr(0, dot)).name != policy.name) return std::nullopt;
    return OwnSetting{setting.substr(dot + 1), true};
  }
  // With one policy an unknown key is passed on, so that it is refused with a suggestion.
  if (!only_policy && !HasParameter(policy, key)) return std::nullopt;
  return OwnSetting{setting, false};
}

// Returns the settings of one policy; what names the policy replaces what is for all.
std::vector<std::string> SettingsFor(const PolicyInfo& policy, const SimulationRequest& request) {
  std::vector<OwnSetting> own;
  for (const std::string& setting : request.settings) {
    std::optional<OwnSetting> found = SettingFor(policy, setting, request.policies.size() == 1);
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

// Every setting must reach some policy: a misspelt one must not be lost.
void RequireUsed(const SimulationRequest& request, const std::vector<const PolicyInfo*>& policies) {
  for (const std::string& setting : request.settings) {
    const auto takes = [&](const PolicyInfo* policy) {
      return SettingFor(*policy, setting, policies.size() == 1).has_value();
    };
    if (std::any_of(policies.begin(), policies.end(), takes)) continue;
    std::vector<std::string_view> known, aliases;
    for (const PolicyInfo* policy : policies) {
      for (const ParameterInfo& parameter : policy->parameters) {
        known.push_back(parameter.name);
        aliases.insert(aliases.end(), parameter.aliases.begin(), parameter.aliases.end());
      }
    }
    const std::string_view key = KeyOf(setting);
    throw UsageError("--set", "unknown parameter " + Quoted(key),
                     ExpectedName(key, known, aliases));
  }
}

SimulationRun PrepareRun(const SimulationRequest& request, const std::string& format_name,
                         const PolicyInfo& policy) {
  const NamedFormat format = ParseFormat(format_name);
  SimulationRun run;
  run.format = format.name;
  run.policy = std::string(policy.name);
  run.rules = policy.rules;
  if (request.finite_test) run.rules.finite_test = *request.finite_test;
  try {
    ConfiguredScaler configured =
        policy.make(ResolveParameters(policy, SettingsFor(policy, request)), format.name);
    run.parameters = std::move(configured.parameters);
    run.notes = std::move(configured.notes);
    Conversion conversion = request.conversion;
    conversion.format = format.format;
    run.start =
        ReplayRun{run.format, run.policy, conversion, run.rules, std::move(configured.scaler)};
  } catch (const PolicyRefusal& refusal) {
    run.parameters = refusal.parameters;
    run.result.events.push_back({-1, refusal.type, refusal.message, true, {}});
  }
  return run;
}

}  // namespace

std::vector<SimulationRun> PrepareRuns(const SimulationRequest& request) {
  std::vector<const PolicyInfo*> policies;
  for (const std::string& name : request.policies) policies.push_back(&FindPolicy(name));
  RequireUsed(request, policies);
  std::vector<SimulationRun> runs;
  for (const std::string& format : request.formats) {
    for (const PolicyInfo* policy : policies) runs.push_back(PrepareRun(request, format, *policy));
  }
  return runs;
}

void Simulate(const TraceReader& trace, const ReplayOptions& options,
              std::vector<SimulationRun>& runs) {
  std::vector<ReplayRun> starts;
  std::vector<SimulationRun*> owners;
  for (SimulationRun& run : runs) {
    if (!run.start) continue;
    starts.push_back(*run.start);
    owners.push_back(&run);
  }
  std::vector<ReplayResult> results = Replay(trace, std::move(starts), options);
  for (size_t i = 0; i < results.size(); ++i) owners[i]->result = std::move(results[i]);
}

}  // namespace dlsim
