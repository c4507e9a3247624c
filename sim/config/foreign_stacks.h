// SPDX-License-Identifier: Apache-2.0
// Configurations of stacks that dlsim does not read: which stack, and the options to give instead.
#pragma once

#include "sim/config/config_block.h"

namespace dlsim::sim {

// Throws Error (exit code 2) that names the stack and the options that stand for the file, if it
// has the marks of a stack that is not read.
void RefuseForeignStack(const ConfigBlock& file);

}  // namespace dlsim::sim
