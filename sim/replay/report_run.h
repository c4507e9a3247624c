// SPDX-License-Identifier: Apache-2.0
// The part of a replay's report that is about one run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "sim/replay/simulation.h"

namespace dlsim::sim {

// Returns why steps were not finite, the warm-up, clipping, events and the `top`
// worst tensors; empty if the run has no steps.
std::string RunSection(const SimulationRun& run, std::span<const OptimizerGroup> optimizers,
                       size_t top);

// The longest row of skipped steps that no lower scale would have made finite.
struct HopelessRow {
  int64_t first_step = 0, last_step = 0;
  uint64_t steps = 0;
  double first_scale = 0, last_scale = 0;  // used by its first step, and after its last
  std::string tensor;                      // to blame for the first
};

// Returns nothing if no such step was skipped.
std::optional<HopelessRow> LongestHopelessRow(const ReplayResult& result);

}  // namespace dlsim::sim
