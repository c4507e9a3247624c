// SPDX-License-Identifier: Apache-2.0
// Profiles of pieces of one step become that of the whole.
#pragma once

#include <string>

#include "dlsim/profile.h"

namespace dlsim {

// Adds what `part`, which is a micro-step, knows of a step to what others know; tensors go by name.
void AddMicroStep(ProfileStep part, ProfileStep& step);

// Adds the tensors of `other`, which holds the same step of another shard. Throws InputError naming
// `place` if they do not fit together.
void AddShard(const std::string& place, ProfileStep other, ProfileStep& step);

}  // namespace dlsim
