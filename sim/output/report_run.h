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

// Returns a count, or its range where a profile leaves one: "12..15".
std::string CountWithin(uint64_t count, const Bracket<uint64_t>& bracket);

// Returns a share as a percentage, or its range where a profile leaves one: "0.12..0.15 %".
std::string PercentWithin(double fraction, const Bracket<double>& bracket);

}  // namespace dlsim
