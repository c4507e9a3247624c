// SPDX-License-Identifier: Apache-2.0
// What one step allows whatever the policy does, and what it loses at a scale.
#pragma once

#include "dlsim/sim/tune.h"
#include "sim/advice/scale_window.h"

namespace dlsim::sim {

// Returns what the window of a step says of scales that are no powers of two either. `conversion`
// is that of the window, `checked` the gradients that decide whether the step is finite.
StepFacts FactsOf(const StepWindow& window, const Conversion& conversion, Checked checked);

// Returns what a step loses at a scale: below its window what StepFacts::harm_below says.
double LostAt(const StepFacts& facts, double scale);

}  // namespace dlsim::sim
