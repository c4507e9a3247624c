// SPDX-License-Identifier: Apache-2.0
// What dlsim scaler prints: the list of policies, the path of a run's scale, and interrupted runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/app/scaler_run.h"

namespace dlsim::sim {

std::string ListPolicies();

std::string FormatRun(const std::string& policy, const ScalerRun& run,
                      const std::vector<std::string>& notes);

// Of runs that were interrupted before `at_step` and resumed.
std::string DescribeTwins(int64_t at_step, const ScalerRun& whole,
                          const std::vector<ScalerTwin>& twins);

}  // namespace dlsim::sim
