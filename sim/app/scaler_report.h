// SPDX-License-Identifier: Apache-2.0
// What dlsim scaler prints: the list of policies, the path of a run's scale, and interrupted runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/app/scaler_run.h"
#include "sim/base/json_value.h"

namespace dlsim::sim {

std::string ListPolicies();

std::string FormatRun(const std::string& policy, const ScalerRun& run,
                      const std::vector<std::string>& notes);

// The same run, interrupted.
struct ScalerTwin {
  Kept kept = Kept::kAll;
  ScalerRun run;
  std::optional<int64_t> first_difference;
};

// Both are of runs that were interrupted before `at_step` and resumed.
Json JsonTwins(int64_t at_step, const std::vector<ScalerTwin>& twins);
std::string DescribeTwins(int64_t at_step, const ScalerRun& whole,
                          const std::vector<ScalerTwin>& twins);

}  // namespace dlsim::sim
