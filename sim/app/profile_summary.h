// SPDX-License-Identifier: Apache-2.0
// What dlsim profile and dlsim merge say about the file that they wrote.
#pragma once

#include <string>

#include "dlsim/profile_file.h"
#include "sim/base/json_value.h"

namespace dlsim::sim {

// One line: steps, sizes, and the questions that the profile answers exactly.
std::string FormatSummary(const std::string& path, const ProfileReader& profile);

// The same for programs, of schema dlsim.profile-report/1.
Json JsonSummary(const std::string& path, const ProfileReader& profile);

}  // namespace dlsim::sim
