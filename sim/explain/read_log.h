// SPDX-License-Identifier: Apache-2.0
// Training logs to the path of their loss scale.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/explain/log_event.h"
#include "sim/explain/scale_path.h"

namespace dlsim::sim {

// What the lines of logs say, in order, and what was left out of it.
struct LogEvents {
  std::vector<LogEvent> events = {};
  std::vector<std::string> notes = {};
  LogLosses losses = {};
  bool bounds_nothing = false;  // the scales are means over steps, or those of no scaler
};

// Reads logs in the order given, as parts of one; "-" is standard input. Each rank's copy of a line
// counts once. Where no line states a loss scale, there are no events, but losses, and one of them
// or its gradient's norm is not finite. Throws InputError if a file cannot be read, or states
// neither.
LogEvents ReadLogs(std::span<const std::string> paths);

// Throws InputError for a log without a loss scale.
[[noreturn]] void RefuseWithoutScale(std::span<const std::string> paths);

// Joins events to stretches of steps. Throws InputError for numbers that no step has.
ScalePath BuildPath(LogEvents log);

}  // namespace dlsim::sim
