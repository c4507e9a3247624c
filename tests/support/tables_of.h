// SPDX-License-Identifier: Apache-2.0
// The steps of a trace as a profile has them: tables alone.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "sim/replay/step_sources.h"

namespace dlsim::sim {

inline StepSource TablesOf(const StepSource& source, const StepOptions& options = {}) {
  std::vector<StepTables> steps;
  for (size_t i = 0; i < source.step_count; ++i) {
    steps.push_back(source.load(i, options)->tables());
  }
  return HeldSteps(std::move(steps));
}

}  // namespace dlsim::sim
