// SPDX-License-Identifier: Apache-2.0
// What the times of commands on one and on several threads say of machines with more cores.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "sim/base/json_value.h"

namespace dlsim::sim {

// Machines of which to tell what they would give.
inline constexpr std::array kPredictedCores = {16, 64};

// One command on one trace, on `threads` threads; all of medians over its repetitions.
struct CommandScaling {
  std::string name;
  int threads = 1;
  double speedup = 0;  // over one thread, of wall-clock time; 0 if that was not measured
  double serial_share = 0;
};

// Returns that of each command on several threads, from the entries of "benchmarks".
std::vector<CommandScaling> ScalingOf(const Json& entries);

// As it stands in "dlsim.scaling".
Json ScalingJson(const std::vector<CommandScaling>& scaling);

// Returns a table of the commands of a document, and one of how they scale.
std::string CommandReport(const Json& document);

}  // namespace dlsim::sim
