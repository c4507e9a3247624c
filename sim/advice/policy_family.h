// SPDX-License-Identifier: Apache-2.0
// What can be tuned of a policy: its initial scale, floor, ceiling, interval and hysteresis, under
// whatever names its stack has for them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/tune.h"

namespace dlsim::sim {

// DeepSpeed's JSON has the exponent of the initial scale, 0 or more.
enum class InitialScales : uint8_t { kAny, kPowersOfTwoFromOne };

struct PolicyFamily {
  const PolicyInfo* policy = nullptr;
  std::string format;  // the defaults of some policies depend on it
  // The stack's names; empty if it has no such parameter.
  std::string init, min, max, interval, hysteresis;
  ScaleParameters defaults;
  bool current = false;  // the defaults are those of the current policy, not of the stack
  ParameterMap base;     // the other parameters that are not the policy's own
  InitialScales initial_scales = InitialScales::kAny;
  double lowest_init = 0, lowest_min = 0;  // powers of two that the policy accepts

  // Returns the parameters that the stack has, under its names.
  std::vector<NamedValue> Named(const ScaleParameters& parameters) const;

  // Returns the scaler, or nothing if the policy refuses the parameters or its configuration cannot
  // express them.
  std::optional<ConfiguredScaler> Make(const ScaleParameters& parameters) const;
};

// The defaults are those of the policy under `settings`, KEY=VALUE; a fixed scale among them is
// left out. Throws Error (exit code 2) for a policy that has no initial scale and interval, or more
// than one scale, and for settings that it refuses.
PolicyFamily FamilyOf(std::string_view policy, const std::string& format,
                      std::span<const std::string> settings = {});

}  // namespace dlsim::sim
