// SPDX-License-Identifier: Apache-2.0
// The path of the loss scale as a compact text plot.
#pragma once

#include <span>
#include <string>

#include "dlsim/sim/replay.h"

namespace dlsim::sim {

// Returns log2 of the scale over the steps in at most `width` columns and `height` (> 1) rows: '*'
// where steps were applied, 'x' where some step of the column was skipped. Empty without steps.
std::string PlotScale(std::span<const ReplayStep> steps, size_t width, size_t height);

}  // namespace dlsim::sim
