// SPDX-License-Identifier: Apache-2.0
// What dlsim profile says about the folder that it wrote.
#pragma once

#include <string>

#include "dlsim/profile.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

// One line: steps, sizes, and what the profile answers.
std::string FormatSummary(const ProfileReader& profile);

// The same for programs, of schema dlsim.profile-report/1.
JsonPart JsonSummary(const ProfileReader& profile);
void AddProfileKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
