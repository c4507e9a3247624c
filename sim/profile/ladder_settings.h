// SPDX-License-Identifier: Apache-2.0
// What a profile is to answer exactly, as users write it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dlsim/ladder.h"
#include "dlsim/profile.h"

namespace dlsim::sim {

struct LadderSettings {
  std::vector<std::string> formats, roundings;  // none: those of the default ladder
  std::optional<std::vector<Subnormals>> subnormals;
  std::optional<std::string> scales;  // a list such as "default,2^-3..2^20,1e4"
};

// Returns the default ladder with what the settings replace. Throws UsageError.
Ladder LadderOf(const LadderSettings& settings);

// Sets ladder and scaled formats: `formats` may name both kinds. Throws UsageError, also for
// delayed scaling: its scales follow from steps that a profile may lack.
void SetFormats(const LadderSettings& settings, ProfileSettings& profile);

}  // namespace dlsim::sim
