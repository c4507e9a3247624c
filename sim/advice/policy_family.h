// SPDX-License-Identifier: Apache-2.0
// What can be tuned of a policy: its initial scale, floor, ceiling, interval and hysteresis, under
// whatever names its stack has for them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "dlsim/sim/tune.h"

namespace dlsim::sim {

// The defaults are those of the policy under `settings`, KEY=VALUE; a fixed scale among them is
// left out. Throws Error (exit code 2) for a policy that has no initial scale and interval, or more
// than one scale, and for settings that it refuses.
PolicyFamily FamilyOf(std::string_view policy, const std::string& format,
                      std::span<const std::string> settings = {});

bool IsPowerOfTwo(double value);

// Returns the shortest decimal text that reads back as this scale; powers of two up to 2^53 and
// other integers have no exponent.
std::string ScaleNumber(double scale);

}  // namespace dlsim::sim
