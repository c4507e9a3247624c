// SPDX-License-Identifier: Apache-2.0
// Profiles of pieces of one step become that of the whole.
#pragma once

#include <string>

#include "dlsim/profile.h"

namespace dlsim {

// Adds what `part`, which is a micro-step, knows of a step to what others know; tensors go by name.
void AddMicroStep(ProfileStep part, ProfileStep& step);

// Adds the tensors of `more` to a step that has one part. Throws InputError if it has one of them.
void AddTensors(ProfileStep more, ProfileStep& step);

}  // namespace dlsim
