// SPDX-License-Identifier: Apache-2.0
// Tuning of whatever can be replayed; include/dlsim/sim/tune.h has what it finds.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "dlsim/ladder.h"
#include "dlsim/sim/tune.h"
#include "sim/advice/advice.h"

namespace dlsim::sim {

// Where gradients come from: a trace or a profile, replayed.
struct TuneSource {
  std::function<std::vector<ReplayResult>(std::vector<ReplayRun>)> replay;
  size_t step_count = 0;
  bool estimated = false;  // a profile, which knows harm within brackets
};

// `advice` is on the request's formats, each once, in their order. Throws Error for unknown names,
// and for a bad trace.
TuneResult Tune(const TuneSource& source, const TuneRequest& request, const Advice& advice);

// Throws UsageError if a profile's ladder lacks a format or mode: brackets would be wide.
void RequireOnLadder(const Ladder& ladder, const TuneRequest& request);

// Returns whether the ladder has a format.
bool HasFormat(const Ladder& ladder, const std::string& format);

}  // namespace dlsim::sim
