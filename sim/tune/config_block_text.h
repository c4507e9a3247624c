// SPDX-License-Identifier: Apache-2.0
// A recommendation as the configuration to paste into a training stack; `dlsim replay --config`
// reads each of them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "dlsim/enum_names.h"
#include "dlsim/sim/tune.h"

namespace dlsim::sim {

enum class ConfigTarget : uint8_t { kModelZoo, kDeepSpeed, kTorch };

constexpr auto EnumNames(ConfigTarget) {
  return std::to_array<EnumName<ConfigTarget>>({{ConfigTarget::kModelZoo, "zoo"},
                                                {ConfigTarget::kDeepSpeed, "deepspeed"},
                                                {ConfigTarget::kTorch, "torch"}});
}

// Returns the policy whose rule the stack follows.
std::string_view PolicyOf(ConfigTarget target);

// Returns whether the stack follows the rule of this policy.
bool IsPolicyOf(ConfigTarget target, std::string_view policy);

// Returns the block for a format, or nothing if the stack has no such type or the tuning has no
// choice for its policy.
std::optional<std::string> ConfigText(ConfigTarget target, const FormatTuning& tuning);

}  // namespace dlsim::sim
