// SPDX-License-Identifier: Apache-2.0
// The scale windows over the steps as a compact text plot, with the paths of policies in them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/replay.h"
#include "sim/advice/scale_window.h"

namespace dlsim::sim {

struct PlottedPath {
  std::string name;
  std::span<const ReplayStep> steps;
};

// Returns log2 of the scale over the steps in at most `width` columns and `height` (> 1) rows: '.'
// where a scale serves all steps of the column, 'a', 'b', ... where a policy's scale was, '#' where
// several were. Empty without steps.
std::string PlotWindows(std::span<const StepWindow> windows, std::span<const PlottedPath> paths,
                        size_t width, size_t height);

}  // namespace dlsim::sim
