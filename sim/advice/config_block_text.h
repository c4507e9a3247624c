// SPDX-License-Identifier: Apache-2.0
// A recommendation as what to paste into a training stack: a configuration, which `dlsim replay
// --config` reads, or Python.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "dlsim/enum_names.h"
#include "dlsim/sim/tune.h"

namespace dlsim::sim {

enum class ConfigTarget : uint8_t {
  kModelZoo,
  kDeepSpeed,
  kTorch,
  kAccelerate,
  kTrainer,
  kLightning
};

constexpr auto EnumNames(ConfigTarget) {
  return std::to_array<EnumName<ConfigTarget>>({{ConfigTarget::kModelZoo, "zoo"},
                                                {ConfigTarget::kDeepSpeed, "deepspeed"},
                                                {ConfigTarget::kTorch, "torch"},
                                                {ConfigTarget::kAccelerate, "accelerate"},
                                                {ConfigTarget::kTrainer, "trainer"},
                                                {ConfigTarget::kLightning, "lightning"}});
}

// What people call them, too.
constexpr auto EnumAliases(ConfigTarget) {
  return std::to_array<EnumName<ConfigTarget>>({{ConfigTarget::kTorch, "pytorch"},
                                                {ConfigTarget::kTrainer, "hf"},
                                                {ConfigTarget::kTrainer, "huggingface"}});
}

// Returns what the block is, for people.
std::string_view TitleOf(ConfigTarget target);

// Returns the policy whose rule the stack follows.
std::string_view PolicyOf(ConfigTarget target);

// Returns whether the stack follows the rule of this policy.
bool IsPolicyOf(ConfigTarget target, std::string_view policy);

// Returns the block for a format, or nothing if the stack has no such type or the tuning has no
// choice for its policy.
std::optional<std::string> ConfigText(ConfigTarget target, const FormatTuning& tuning);

}  // namespace dlsim::sim
