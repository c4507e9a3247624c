// SPDX-License-Identifier: Apache-2.0
// Scales that a log prints as a mean or a median over steps.
#pragma once

#include "sim/explain/read_log.h"

namespace dlsim::sim {

// Leaves out means that are no scale, and gives a median the scales that its last step may have.
void ReadAverages(LogEvents& log);

}  // namespace dlsim::sim
