// SPDX-License-Identifier: Apache-2.0
// The parameters of a policy that follow from the scale windows of the steps.
#pragma once

#include "dlsim/sim/tune.h"
#include "sim/advice/policy_family.h"

namespace dlsim::sim {

// Returns the scale of the verdict, or the one that is safe at the most steps.
double FixedScale(const FormatAdvice& advice);

// Returns parameters that follow from the windows: all scales are powers of two within what the
// policy accepts. The start is the scale of the verdict, or, where it needs none, the highest with
// head-room; the rest the stack's defaults, as long as nothing else loses less; then the start of
// the first step's window, other intervals, floors and ceilings.
PolicyChoice Derive(const PolicyFamily& family, const FormatAdvice& advice);

}  // namespace dlsim::sim
