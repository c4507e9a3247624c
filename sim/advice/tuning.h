// SPDX-License-Identifier: Apache-2.0
// The parameters of a policy that follow from the scale windows of the steps, and what a run of it
// loses. include/dlsim/sim/tune.h has the tuning.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/tune.h"

namespace dlsim::sim {

// Returns the policy that is tuned for a format.
std::string_view TunedPolicy(const TuneRequest& request, const std::string& format);

// What can be tuned of a policy: its initial scale, floor, ceiling, interval and hysteresis, under
// whatever names its stack has for them.
struct PolicyFamily {
  const PolicyInfo* policy = nullptr;
  std::string format;  // the defaults of some policies depend on it
  // The stack's names; empty if it has no such parameter.
  std::string init, min, max, interval, hysteresis;
  ScaleParameters defaults;
  bool current = false;  // the defaults are those of the current policy, not of the stack
  ParameterMap base;     // the other parameters that are not the policy's own
  // DeepSpeed's JSON has the exponent of the initial scale, 0 or more.
  bool powers_of_two_from_one = false;
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

// Returns the score of a replay of `steps` steps; those that a fatal error cut off are lost.
PolicyScore ScoreOf(const ReplayResult& result, size_t steps, const Conversion& conversion);

// The scales, powers of two or not, that serve every step that some scale makes finite.
struct CommonScales {
  double low = 0, high = 0;  // a power of two; the largest that no such step forbids
  // The steps that decide them; null where none does.
  const StepWindow *low_step = nullptr, *high_step = nullptr;
  bool empty() const { return low > high; }
};
CommonScales CommonScalesOf(std::span<const StepWindow> windows);

// Returns the verdict as what to do about the loss scale.
std::string_view ScalingAdvised(const FormatAdvice& advice);

}  // namespace dlsim::sim
