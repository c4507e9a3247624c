// SPDX-License-Identifier: Apache-2.0
// The scale windows over the steps as a compact text plot, with the paths of policies in them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/replay.h"
#include "sim/advice/windows.h"

namespace dlsim::sim {

struct PlottedPath {
  std::string name;
  std::span<const ReplayStep> steps;
};

// Plots log2 of the loss scale over the steps in at most `width` columns and `height` (> 1) rows.
// '.' marks scales that are safe at all steps of the column, 'A', 'B', ... where the scale of a
// policy was, in lower case where it was not safe. A row is labeled with the scales that it
// covers; rows with nothing in them are left out. A legend explains each sign, and says how many of
// `all_paths` are drawn. Empty without steps.
std::string PlotWindows(std::span<const StepWindow> windows, std::span<const PlottedPath> paths,
                        size_t all_paths, size_t width, size_t height);

}  // namespace dlsim::sim
