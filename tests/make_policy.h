// SPDX-License-Identifier: Apache-2.0
// Makes policies from settings and says what they refuse and note, for the tests of policies.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "dlsim/loss_scaler.h"
#include "sim/policies/registry.h"

namespace dlsim {

using PolicySettings = std::vector<std::string>;

inline ConfiguredScaler MakePolicy(std::string_view policy_name,
                                   const PolicySettings& settings = {},
                                   std::string_view format = "") {
  const PolicyInfo& policy = FindPolicy(policy_name);
  return policy.make(ResolveParameters(policy, settings), format);
}

// Returns "Type: message", or "" if the policy takes the settings.
inline std::string Refusal(std::string_view policy_name, const PolicySettings& settings) {
  try {
    MakePolicy(policy_name, settings);
    return "";
  } catch (const PolicyRefusal& refusal) {
    EXPECT_FALSE(refusal.parameters.empty());
    return refusal.type + ": " + refusal.message;
  }
}

inline bool NotesMention(const ConfiguredScaler& configured, std::string_view text) {
  for (const std::string& note : configured.notes) {
    if (note.find(text) != std::string::npos) return true;
  }
  return false;
}

// Advances by one step per letter: "x" overflows, "." does not.
inline void Advance(LossScaler& scaler, std::string_view steps) {
  for (const char step : steps) scaler.Next({.overflow = step == 'x'});
}

// The loss scale that a policy must have after these steps.
struct Promise {
  std::string_view policy;
  PolicySettings settings;
  std::string steps;
  double scale;
};

inline void ExpectPromises(const std::vector<Promise>& promises) {
  for (const Promise& promise : promises) {
    LossScaler scaler = MakePolicy(promise.policy, promise.settings).scaler;
    Advance(scaler, promise.steps);
    EXPECT_EQ(scaler.scale(), promise.scale)
        << promise.policy << " " << testing::PrintToString(promise.settings) << " "
        << promise.steps;
  }
}

inline std::string Clean(size_t steps) { return std::string(steps, '.'); }
inline std::string Overflows(size_t steps) { return std::string(steps, 'x'); }

}  // namespace dlsim
