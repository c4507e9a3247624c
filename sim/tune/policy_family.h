// SPDX-License-Identifier: Apache-2.0
// What can be tuned of a policy: its initial scale, floor, ceiling, interval and hysteresis, under
// whatever names its stack has for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/policies/registry.h"

namespace dlsim {

// The tuned parameters; those that a policy does not have are ignored.
struct ScaleParameters {
  double init = 1;
  double min = 0;
  double max = 0;
  int64_t interval = 0;
  int64_t hysteresis = 1;

  friend bool operator==(const ScaleParameters&, const ScaleParameters&) = default;
};

// DeepSpeed's JSON has the exponent of the initial scale, 0 or more.
enum class InitialScales : uint8_t { kAny, kPowersOfTwoFromOne };

struct PolicyFamily {
  const PolicyInfo* policy = nullptr;
  std::string format;  // the defaults of some policies depend on it
  // The stack's names; empty if it has no such parameter.
  std::string init, min, max, interval, hysteresis;
  ScaleParameters defaults;
  InitialScales initial_scales = InitialScales::kAny;
  double lowest_init = 0, lowest_min = 0;  // powers of two that the policy accepts

  // Returns the parameters as the policy's own settings.
  ParameterMap Settings(const ScaleParameters& parameters) const;

  // Returns the scaler, or nothing if the policy refuses the parameters or its configuration cannot
  // express them.
  std::optional<ConfiguredScaler> Make(const ScaleParameters& parameters) const;
};

// Throws Error (exit code 2) for a policy that has no initial scale and interval, or more than one
// scale.
PolicyFamily FamilyOf(std::string_view policy, const std::string& format);

bool IsPowerOfTwo(double value);

// Returns the shortest decimal text that reads back as this scale; powers of two up to 2^53 and
// other integers have no exponent.
std::string ScaleNumber(double scale);

}  // namespace dlsim
