// SPDX-License-Identifier: Apache-2.0
// A profile that is made at once of others.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "dlsim/profile_file.h"

namespace dlsim {

// Writes a profile with the settings of `like` and, for each of its steps, what `step` returns.
// Throws Error, and leaves nothing of the output then.
void WriteProfileLike(const ProfileReader& like, const std::string& output,
                      const std::function<EncodedStep(size_t)>& step);

}  // namespace dlsim
