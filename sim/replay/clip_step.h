// SPDX-License-Identifier: Apache-2.0
// What clipping does to the gradients of one applied step.
#pragma once

#include <cstddef>
#include <span>

#include "dlsim/sim/replay.h"
#include "sim/replay/finite_test.h"

namespace dlsim::sim {

// Fills in the record's clip coefficient or clipped elements, and those of its optimizers. `groups`
// is the optimizer of each tensor. Norms, scale and skips must be in the record.
void ClipStep(const ReplayRun& run, const JudgedStep& judged, std::span<const size_t> groups,
              ReplayStep& record);

}  // namespace dlsim::sim
