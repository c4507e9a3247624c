// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/policy.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <optional>
#include <set>
#include <string>

#include "dlsim/error.h"
#include "dlsim/sim/policies.h"
#include "sim/base/parse.h"
#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

std::string Place(const Settings& settings, std::string_view name) {
  return std::string(settings.policy).append(".").append(name);
}

}  // namespace

std::string Settings::Text(std::string_view name) const {
  if (const auto found = given.find(name); found != given.end()) return found->second;
  for (const ParameterInfo& info : table) {
    if (info.name == name) return std::string(info.default_text);
  }
  assert(false && "the policy reads a parameter that its table lacks");
  return "";
}

double Settings::Number(std::string_view name) const {
  return ParseNumber(Text(name), Place(*this, name));
}

int64_t Settings::Integer(std::string_view name) const {
  return ParseInteger(Text(name), Place(*this, name));
}

std::optional<double> Settings::OptionalNumber(std::string_view name) const {
  const std::string text = Text(name);
  if (text == "none" || text == "None" || text == "null") return std::nullopt;
  return Number(name);
}

float Settings::StaticScale(std::string_view name) const {
  const float scale = static_cast<float>(Number(name));
  if (scale > 0 && std::isfinite(scale)) return scale;
  Refuse(name, "not a loss scale", "a positive float32 number");
}

void Settings::Refuse(std::string_view name, std::string_view problem,
                      std::string_view expected) const {
  throw UsageError(Place(*this, name), problem, expected, Quoted(Text(name)));
}

void Settings::RequirePositive(std::string_view name, double value) const {
  if (!(value > 0)) Refuse(name, "not a loss scale", "a positive number");
}

void Settings::RequireCount(std::string_view name, int64_t value) const {
  constexpr int64_t kLimit = int64_t{1} << 53;
  if (value < -kLimit || value > kLimit) Refuse(name, "out of range", "at most 2^53 either way");
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, double& into) {
  return into = settings.Number(name);
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, float& into) {
  const double given = settings.Number(name);
  into = static_cast<float>(given);
  return given;
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, AsFloat32& into) {
  return into.given = settings.Number(name);
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, int64_t& into) {
  return into = settings.Integer(name);
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, int32_t& into) {
  const int64_t given = settings.Integer(name);
  into = static_cast<int32_t>(given);
  if (into != given) settings.Refuse(name, "out of range", "a number that int32 can hold");
  return given;
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, KernelInt& into) {
  return into.given = settings.Integer(name);
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, bool& into) {
  return into = ParseBool(settings.Text(name), Place(settings, name));
}

ShownValue ReadParameter(const Settings& settings, std::string_view name,
                         std::optional<double>& into) {
  into = settings.OptionalNumber(name);
  return into ? ShownValue(*into) : "none";
}

ShownValue ReadParameter(const Settings& settings, std::string_view name,
                         std::optional<float>& into) {
  const std::optional<double> given = settings.OptionalNumber(name);
  if (given) into = static_cast<float>(*given);
  return given ? ShownValue(*given) : "none";
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, FixedOrDynamic& into) {
  if (settings.Text(name) == "dynamic") return "dynamic";
  return *(into.fixed = settings.Number(name));
}

void NoteDeadStart(std::string_view name, double scale, std::vector<std::string>& notes) {
  if (scale == 0) {
    notes.push_back(
        std::string(name).append(" 0 is taken as it is, not as the default: the scale stays 0"));
  } else if (!std::isfinite(scale)) {
    notes.push_back(std::string(name).append(" is infinite as float32 and can never come back"));
  }
}

void NoteZero(std::optional<int64_t> overflows, std::vector<std::string>& notes) {
  if (!overflows) return;
  notes.push_back(std::to_string(*overflows) +
                  " overflows in a row make the scale 0, which never grows again");
}

void NoteDivisor(std::string_view name, double factor, std::vector<std::string>& notes) {
  if (factor > 1) return;
  notes.push_back(
      std::string(name).append(factor < 0 ? " below 0: the scale changes its sign"
                                          : " of 1 or less: an overflow does not lower the scale"));
}

void NoteInfinity(std::optional<int64_t> clean_steps, std::vector<std::string>& notes) {
  if (!clean_steps) return;
  notes.push_back(std::to_string(*clean_steps) +
                  " clean steps make the scale infinite, and it can never come back");
}

void NoteNoCeiling(std::optional<int64_t> clean_steps, std::vector<std::string>& notes) {
  if (clean_steps) {
    NoteInfinity(clean_steps, notes);
  } else {
    notes.push_back("no ceiling: the scale can grow to infinity, and it can never come back");
  }
}

void NoteCeiling(std::string_view name, double ceiling, std::optional<int64_t> clean_steps,
                 std::vector<std::string>& notes) {
  if (!clean_steps || IsPowerOfTwo(ceiling)) return;
  notes.push_back(std::to_string(*clean_steps) + " clean steps bring the scale to " +
                  std::string(name) + ", not a power of two: neither are later scales");
}

PolicyInfo StaticPolicy() {
  using Config = StaticScale::Config;
  return PolicyOf<StaticScale>(
      {.name = "static",
       .summary = "a constant loss scale; no step is ever skipped",
       .checkpoint = Kept::kNothing},
      {Row(&Config::scale, "loss_scale", {"loss_scaling_factor"}, "1", "the loss scale, as float32",
           ParameterRole::kStart)},
      [](Setup<Config>& setup) {
        setup.parameters = {{"loss_scale", double{setup.settings.StaticScale("loss_scale")}}};
      });
}

// The registry.

namespace {

template <class Info>
bool HasName(const Info& info, std::string_view name) {
  return info.name == name || std::ranges::find(info.aliases, name) != info.aliases.end();
}

// Returns the entry of that name or alias; throws Error naming `place`, `problem` and the known.
template <class Info>
const Info& FindNamed(std::span<const Info> infos, std::string_view name, std::string_view place,
                      std::string_view problem) {
  std::vector<std::string_view> known;
  std::vector<std::string_view> aliases;
  for (const Info& info : infos) {
    if (HasName(info, name)) return info;
    known.push_back(info.name);
    aliases.insert(aliases.end(), info.aliases.begin(), info.aliases.end());
  }
  throw UsageError(place, WithSuggestion(problem, name, known, aliases), OneOf(known),
                   Quoted(name));
}

// Some originals take a negative scale, which turns every gradient round. Scales that never change
// are refused where they are read.
void RefuseNegativeScale(const PolicyInfo& policy, const ParameterInfo& parameter,
                         std::string_view text) {
  if (!text.starts_with('-') || parameter.role != ParameterRole::kStart) return;
  const std::string place = std::string(policy.name) + "." + std::string(parameter.name);
  if (ParseNumber(text, place) < 0) {
    throw UsageError(place, "not a loss scale", "a positive number", Quoted(text));
  }
}

}  // namespace

std::span<const PolicyInfo> Policies() {
  static const std::vector<PolicyInfo> kPolicies = {
      StaticPolicy(),                  //
      CerebrasPolicy(),                //
      Cerebras210Policy(),             //
      CerebrasTfPolicy(),              //
      TorchPolicy(),                   //
      Torch113Policy(),                //
      FairseqPolicy(),                 //
      MetaseqPolicy(),                 //
      FairscalePolicy(),               //
      FlaxPolicy(),                    //
      JmpPolicy(),                     //
      MxnetPolicy(),                   //
      MindsporeAmpPolicy(),            //
      MindsporeCellPolicy(),           //
      ApexPolicy(),                    //
      ApexFp16UtilsPolicy(),           //
      ApexHysteresisPolicy(),          //
      DeepSpeedPolicy(),               //
      DeepSpeed016Policy(),            //
      DeepSpeedFp16OptimizerPolicy(),  //
      MegatronPolicy(),                //
      ColossalAiPolicy(),              //
      MindSporeManagerPolicy(),        //
      TfPolicy(),                      //
      Keras2Policy(),                  //
      KerasPolicy(),                   //
      TfContribPolicy(),               //
      PaddlePolicy(),                  //
      PaddleStaticPolicy(),            //
      OpenSeq2SeqBackoffPolicy(),      //
      OpenSeq2SeqLogMaxPolicy(),       //
      PopartPolicy(),                  //
      AdaLossPolicy(),                 //
      Fairseq2Policy(),                //
      IcefallPolicy(),                 //
      GuidedDiffusionPolicy(),         //
      BmtrainPolicy(),                 //
  };
  return kPolicies;
}

const PolicyInfo& FindPolicy(std::string_view name) {
  return FindNamed(Policies(), name, "policy", "unknown name");
}

std::vector<const PolicyInfo*> NamedPolicies(std::span<const std::string> names) {
  std::vector<const PolicyInfo*> policies;
  const auto add = [&](const PolicyInfo& policy) {
    if (std::ranges::find(policies, &policy) == policies.end()) policies.push_back(&policy);
  };
  for (const std::string& name : names) {
    if (name == kAllPolicies) {
      for (const PolicyInfo& policy : Policies()) add(policy);
    } else {
      add(FindPolicy(name));
    }
  }
  return policies;
}

ParameterMap ResolveParameters(const PolicyInfo& policy, std::span<const std::string> settings) {
  ParameterMap parameters;
  for (const std::string_view setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string_view::npos) {
      throw UsageError(policy.name, "not a setting", "KEY=VALUE", Quoted(setting));
    }
    const ParameterInfo& parameter =
        FindNamed(std::span<const ParameterInfo>(policy.parameters), setting.substr(0, equals),
                  policy.name, "unknown parameter");
    RefuseNegativeScale(policy, parameter, setting.substr(equals + 1));
    const auto [position, inserted] =
        parameters.emplace(parameter.name, setting.substr(equals + 1));
    if (!inserted) {
      throw UsageError(policy.name, "parameter " + position->first + " is given twice");
    }
  }
  return parameters;
}

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

}  // namespace

const ParameterInfo* FindParameter(const PolicyInfo& policy, std::string_view name) {
  const auto found = std::ranges::find_if(
      policy.parameters, [&](const ParameterInfo& info) { return HasName(info, name); });
  return found == policy.parameters.end() ? nullptr : &*found;
}

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
  std::set<std::string> given;
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
    if (!given.insert(key).second) throw UsageError(place, "given twice");
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
      case LossScaler::Restored::kUnknownField: {
        const std::vector<std::string> keys = StateKeys(scaler);
        const std::vector<std::string_view> known(keys.begin(), keys.end());
        throw UsageError(policy, WithSuggestion("unknown field of the state", key, known),
                         OneOf(known), Quoted(key));
      }
      case LossScaler::Restored::kBadValue:
        throw UsageError(place, "not a value of this field", "an integer that fits",
                         PythonRepr(value));
    }
  }
}

}  // namespace dlsim::sim
