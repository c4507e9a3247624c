// SPDX-License-Identifier: Apache-2.0
// Chooses, among parameters that lose the same, those that are sensible beyond the trace.
#pragma once

#include "dlsim/sim/tune.h"
#include "sim/tune/policy_search.h"

namespace dlsim::sim {

// Returns the best static scale of the table from `lowest` on: of those that lose the same 1, else
// the highest with two binades of head-room, a power of two if one is as good. Where all scales are
// lower, of all.
StaticChoice BestStatic(const ScaleTable& table, double lowest = 0);

// Returns the recommendation of a search that has run and ranked something: the stack's defaults
// wherever the loss stays within the resolution of the best.
PolicyChoice Recommend(PolicySearch& search, const PolicyFamily& family, const ScaleTable& table);

}  // namespace dlsim::sim
