// SPDX-License-Identifier: Apache-2.0
// The loss-scaling policies: their names and parameters, and how to make each.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/loss_scaler.h"

namespace dlsim::sim {

// What a parameter does, whatever its stack calls it.
enum class ParameterRole : uint8_t {
  kStart,      // the first loss scale
  kInterval,   // clean steps until the scale grows
  kGrowth,     // factor
  kBackoff,    // factor
  kFactor,     // of both
  kOverflows,  // until the scale falls
  kTolerance,  // share of overflows
  kFloor,
  kCeiling,
  kOther,
};

// One parameter under the stack's own name, with the other spellings that are accepted.
struct ParameterInfo {
  std::string_view name;
  std::vector<std::string_view> aliases;
  std::string_view default_text;  // as a user would write it, e.g. "2^15"
  std::string_view help;
  ParameterRole role = ParameterRole::kOther;
};

// Parameters by their first name, as the user wrote them; absent = default.
using ParameterMap = std::map<std::string, std::string, std::less<>>;

// A scaler ready to run.
struct ConfiguredScaler {
  LossScaler scaler;
  std::vector<NamedValue> parameters;      // all, defaults included, in the order of the table
  std::vector<std::string> notes = {};     // surprises worth one line in a report
  std::optional<LossScaler> initial = {};  // as training begins, if `scaler` is from a checkpoint
};

// A policy refused its parameters as the original would: the original's exception and message.
struct PolicyRefusal {
  std::string type;                         // such as "ValueError"
  std::string message;                      // verbatim
  std::vector<NamedValue> parameters = {};  // all, as in ConfiguredScaler
};

struct PolicyInfo {
  std::string_view name;
  std::vector<std::string_view> aliases = {};
  std::string_view summary;  // one line for --help and docs
  StackRules rules = {};
  std::vector<ParameterInfo> parameters = {};
  // `format` is the name of the number format in use ("" if none), for defaults that depend on it.
  // Throws PolicyRefusal, or Error (exit code 2) for a value of the wrong type.
  std::function<ConfiguredScaler(const ParameterMap& parameters, std::string_view format)> make =
      {};
  Kept checkpoint = Kept::kAll;  // by the stack itself; the rest is reset on resume
};

// All policies, in the order in which help and docs list them.
std::span<const PolicyInfo> Policies();

// Returns the policy of that name or alias; throws Error (exit code 2) with a "did you mean".
const PolicyInfo& FindPolicy(std::string_view name);

// The name that stands for all policies.
inline constexpr std::string_view kAllPolicies = "all";

// Returns the policies of names, aliases and kAllPolicies, each once; throws as FindPolicy does.
std::vector<const PolicyInfo*> NamedPolicies(std::span<const std::string> names);

// Resolves KEY=VALUE settings to the policy's first names; throws Error (exit code 2) for an
// unknown key, with a "did you mean", and for a key given twice.
ParameterMap ResolveParameters(const PolicyInfo& policy, std::span<const std::string> settings);

}  // namespace dlsim::sim
