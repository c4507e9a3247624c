// SPDX-License-Identifier: Apache-2.0
// Tuning of whatever can be replayed; include/dlsim/sim/tune.h has what it finds.
#pragma once

#include <string>

#include "dlsim/ladder.h"
#include "dlsim/sim/tune.h"
#include "sim/tune/scale_table.h"

namespace dlsim::sim {

// Throws Error for unknown names, and for a bad trace.
TuneResult Tune(const TuneSource& source, const TuneRequest& request);

// Throws UsageError if a profile's ladder lacks what is asked for: a search between brackets would
// end anywhere.
void RequireOnLadder(const Ladder& ladder, const TuneRequest& request);

// Returns whether the ladder has a format.
bool HasFormat(const Ladder& ladder, const std::string& format);

// The mean loss of a replay as tune defines it; steps that a fatal error cut off are lost.
double MeanLossOf(const ReplayResult& result, size_t steps, const Conversion& conversion);

}  // namespace dlsim::sim
