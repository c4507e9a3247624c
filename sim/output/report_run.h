// SPDX-License-Identifier: Apache-2.0
// The part of a replay's report that is about one run.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "sim/simulation.h"

namespace dlsim {

// Returns the scale's path, why steps were not finite, the warm-up, clipping, events and the `top`
// worst tensors; empty if the run has no steps.
std::string RunSection(const SimulationRun& run, std::span<const OptimizerGroup> optimizers,
                       size_t top);

}  // namespace dlsim
