// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/policy_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <variant>

#include "dlsim/error.h"
#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

// Returns the policy's own name of the parameter in a role; empty if none is. Of two floors, which
// fairseq has, it is the last: no scale passes that one.
std::string NameOfRole(const PolicyInfo& policy, ParameterRole role) {
  std::string_view name;
  for (const ParameterInfo& parameter : policy.parameters) {
    if (parameter.role == role) name = parameter.name;
  }
  return std::string(name);
}

double DefaultNumber(const std::vector<NamedValue>& parameters, const std::string& name) {
  for (const NamedValue& parameter : parameters) {
    if (parameter.name != name) continue;
    if (const auto* number = std::get_if<double>(&parameter.value)) return *number;
    if (const auto* integer = std::get_if<int64_t>(&parameter.value)) {
      return static_cast<double>(*integer);
    }
  }
  return 0;  // "none", or no such parameter
}

// Returns the lowest power of two from 2^-24 on that the policy takes in the parameter's place.
double LowestAccepted(const PolicyFamily& family, double ScaleParameters::*parameter) {
  for (int exponent = -24; exponent < 0; ++exponent) {
    ScaleParameters trial = family.defaults;
    trial.*parameter = std::ldexp(1.0, exponent);
    if (parameter == &ScaleParameters::init) trial.min = std::fmin(trial.min, trial.init);
    if (family.Make(trial)) return trial.*parameter;
  }
  return 1;
}

ConfiguredScaler MakeDefaults(const PolicyInfo& policy, const ParameterMap& parameters,
                              const std::string& format) {
  try {
    return policy.make(parameters, format);
  } catch (const PolicyRefusal& refusal) {
    throw UsageError("policy " + std::string(policy.name), refusal.type + ": " + refusal.message);
  }
}

}  // namespace

std::vector<NamedValue> PolicyFamily::Named(const ScaleParameters& parameters) const {
  std::vector<NamedValue> named = {{init, parameters.init},
                                   {min, parameters.min},
                                   {max, parameters.max},
                                   {interval, parameters.interval},
                                   {hysteresis, parameters.hysteresis}};
  std::erase_if(named, [](const NamedValue& parameter) { return parameter.name.empty(); });
  return named;
}

std::optional<ConfiguredScaler> PolicyFamily::Make(const ScaleParameters& parameters) const {
  const bool any = initial_scales == InitialScales::kAny;
  if (!any && (parameters.init < 1 || !IsPowerOfTwo(parameters.init))) return std::nullopt;
  ParameterMap settings = base;
  for (const NamedValue& parameter : Named(parameters)) {
    const auto* scale = std::get_if<double>(&parameter.value);
    if (scale == nullptr) {
      settings[parameter.name] = std::to_string(std::get<int64_t>(parameter.value));
    } else if (*scale != 0) {
      settings[parameter.name] = fmt::format("{}", *scale);
    }
  }
  try {
    return policy->make(settings, format);
  } catch (const PolicyRefusal&) {
    return std::nullopt;
  }
}

PolicyFamily FamilyOf(std::string_view policy, const std::string& format,
                      std::span<const std::string> settings) {
  PolicyFamily family;
  family.policy = &FindPolicy(policy);
  family.format = format;
  const PolicyInfo& info = *family.policy;
  family.init = NameOfRole(info, ParameterRole::kStart);
  family.min = NameOfRole(info, ParameterRole::kFloor);
  family.max = NameOfRole(info, ParameterRole::kCeiling);
  family.interval = NameOfRole(info, ParameterRole::kInterval);
  family.hysteresis = NameOfRole(info, ParameterRole::kOverflows);
  family.base = ResolveParameters(info, settings);
  if (family.init != "loss_scale") family.base.erase("loss_scale");
  family.current = !settings.empty();
  const ConfiguredScaler configured = MakeDefaults(info, family.base, format);
  const bool magnitudes = configured.scaler.uses_absmax() || configured.scaler.looks_ahead() ||
                          configured.scaler.histogram_edge();
  if (family.init.empty() || family.interval.empty() || magnitudes ||
      info.rules.granularity != ScaleGranularity::kModel) {
    throw UsageError("--policy", "nothing to tune",
                     "a policy with one loss scale, an initial scale and an interval",
                     Quoted(info.name));
  }
  const auto number = [&](const std::string& name) {
    return DefaultNumber(configured.parameters, name);
  };
  family.defaults = {
      .init = number(family.init),
      .min = number(family.min),
      .max = number(family.max),
      .interval = static_cast<int64_t>(number(family.interval)),
      .hysteresis = std::max<int64_t>(1, static_cast<int64_t>(number(family.hysteresis)))};
  if (info.name.starts_with("deepspeed")) {
    family.initial_scales = InitialScales::kPowersOfTwoFromOne;
  }
  family.lowest_min = family.min.empty() ? 0 : LowestAccepted(family, &ScaleParameters::min);
  family.lowest_init = LowestAccepted(family, &ScaleParameters::init);
  return family;
}

}  // namespace dlsim::sim
