// SPDX-License-Identifier: Apache-2.0
// Remarks on a trace that a replay cannot tell from its figures: what it may not be.
#pragma once

#include <string>
#include <vector>

#include "dlsim/trace.h"

namespace dlsim::sim {

// Returns the reader's own notes, then one each for steps that were not recorded, for gradients in
// 16 bits and for what looks like a model's weights; the last two go by the first step.
std::vector<std::string> NotesOnTrace(const TraceReader& trace);

}  // namespace dlsim::sim
