// SPDX-License-Identifier: Apache-2.0
// What each layer of a model loses in a run: its tensors together.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/replay.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {

struct LayerLoss {
  std::string name;
  uint64_t tensors = 0;     // without those that hold only rounding noise of float32
  HarmOverSteps harm = {};  // over its tensors: the mean of their means, and the worst of any step
  uint64_t overflow = 0;    // finite values that overflow, over all steps
  std::optional<int64_t> first_overflow_step = {};
};

// Returns the layers of these tensors, the worst first: by overflowing values, then by the worst
// harm. Repeated calls of a module in a step (`fc.call1`) count as one layer.
std::vector<LayerLoss> LayerLosses(std::span<const ReplayTensor> tensors);

// Returns a table for each run with the `top` worst layers at the scales that its policy used.
std::string FormatLayerLosses(std::span<const SimulationRun> runs, size_t top);

}  // namespace dlsim::sim
