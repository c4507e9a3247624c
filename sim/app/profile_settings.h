// SPDX-License-Identifier: Apache-2.0
// What users ask a profile to hold beyond what all profiles do: arguments of `dlsim profile` and of
// Python's writer. In profile_command.cc.
#pragma once

#include <string>
#include <vector>

#include "dlsim/scaled_format.h"

namespace dlsim::sim {

// Returns ProfileSettings::mantissas for loss scales, of which powers of two need none. Errors name
// `place`.
std::vector<float> MantissasOf(const std::vector<std::string>& scales, const std::string& place);

// Returns ProfileSettings::scaled for the names of formats, without repeated ones.
std::vector<NamedScaledFormat> ScaledFormatsOf(const std::vector<std::string>& names,
                                               const std::string& place);

}  // namespace dlsim::sim
