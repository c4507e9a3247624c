// SPDX-License-Identifier: Apache-2.0
// Makes policies, says what they refuse and note, and takes them through steps, for their tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/sim/loss_scaler.h"
#include "dlsim/sim/policies.h"
#include "sim/base/parse.h"

namespace dlsim::sim {

using PolicySettings = std::vector<std::string>;

inline ConfiguredScaler MakePolicy(std::string_view policy_name,
                                   const PolicySettings& settings = {},
                                   std::string_view format = "") {
  const PolicyInfo& policy = FindPolicy(policy_name);
  return policy.make(ResolveParameters(policy, settings), format);
}

// Returns what makes the settings wrong usage, or "" if they are not.
inline std::string UsageMessage(std::string_view policy_name, const PolicySettings& settings) {
  try {
    MakePolicy(policy_name, settings);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    return error.what();
  }
}

// Returns the original's "Type: message", dlsim's own UsageMessage(), or "" for settings taken.
inline std::string Refusal(std::string_view policy_name, const PolicySettings& settings) {
  try {
    return UsageMessage(policy_name, settings);
  } catch (const PolicyRefusal& refusal) {
    EXPECT_EQ(refusal.parameters.size(), FindPolicy(policy_name).parameters.size()) << policy_name;
    return refusal.type + ": " + refusal.message;
  }
}

inline bool NotesMention(const ConfiguredScaler& configured, std::string_view text) {
  for (const std::string& note : configured.notes) {
    if (note.find(text) != std::string::npos) return true;
  }
  return false;
}

// Advances by a text such as "ok*3 overflow ok", on past events; returns what each step did.
inline std::vector<ScalerDecision> Advance(LossScaler& scaler, std::string_view steps) {
  std::vector<ScalerDecision> decisions;
  while (!steps.empty()) {
    const std::string_view word = steps.substr(0, steps.find(' '));
    steps.remove_prefix(std::min(word.size() + 1, steps.size()));
    const size_t star = word.find('*');
    const std::string_view kind = word.substr(0, star);
    EXPECT_TRUE(kind == "ok" || kind == "overflow") << word;
    const int count =
        star == std::string_view::npos ? 1 : std::stoi(std::string(word.substr(star + 1)));
    for (int i = 0; i < count; ++i) {
      decisions.push_back(scaler.Next({.overflow = kind == "overflow"}));
    }
  }
  return decisions;
}

// Returns "Type: message" of the last step's event, or "".
inline std::string EventAfter(LossScaler& scaler, std::string_view steps) {
  const ScalerDecision last = Advance(scaler, steps).back();
  return last.event ? last.event->type + ": " + last.event->message : "";
}

// The loss scale that a policy must have after these steps.
struct Promise {
  std::string_view policy;
  PolicySettings settings;
  std::string_view steps;
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

inline decltype(NamedValue::value) Counter(const LossScaler& scaler, std::string_view name) {
  for (const NamedValue& value : scaler.Checkpoint()) {
    if (value.name == name) return value.value;
  }
  ADD_FAILURE() << "no counter " << name;
  return {};
}

inline double NumberOf(bool value) { return value ? 1 : 0; }
inline double NumberOf(int64_t value) { return static_cast<double>(value); }
inline double NumberOf(double value) { return value; }
inline double NumberOf(const std::string& text) { return ParseNumber(text, "checkpoint"); }

// Gives `restored` all fields of the checkpoint of `original`.
inline void ContinueFrom(const LossScaler& original, LossScaler& restored) {
  for (const NamedValue& field : original.Checkpoint()) {
    const double value = std::visit([](const auto& v) { return NumberOf(v); }, field.value);
    EXPECT_EQ(restored.Restore(field.name, value), LossScaler::Restored::kOk) << field.name;
  }
}

}  // namespace dlsim::sim
