// SPDX-License-Identifier: Apache-2.0
// What a profile must know to be tuned for; include/dlsim/sim/tune.h has the tuning.
#pragma once

#include <string>

#include "dlsim/ladder.h"
#include "dlsim/sim/tune.h"

namespace dlsim::sim {

// Returns the policy that is tuned for a format.
std::string_view TunedPolicy(const TuneRequest& request, const std::string& format);

// Throws UsageError if a profile's ladder lacks a format or mode: brackets would be wide.
void RequireOnLadder(const Ladder& ladder, const TuneRequest& request);

// Returns whether the ladder has a format.
bool HasFormat(const Ladder& ladder, const std::string& format);

}  // namespace dlsim::sim
