// SPDX-License-Identifier: Apache-2.0
// The parameter sets of a policy that a path suggests: its first scale, the distances between
// changes, their ratios, the overflows before a fall, and its plateaus.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/policies.h"
#include "sim/explain/scale_path.h"

namespace dlsim::sim {

// Between `least` and `most` clean steps before a growth.
struct GrowthDistance {
  int64_t least = 0, most = 0;
};

// The marks that policies leave on a path.
struct PathMarks {
  std::vector<double> first_scales = {};       // the likeliest first
  std::vector<GrowthDistance> distances = {};  // since the last change or overflow, of each growth
  int64_t longest_clean = 0;                   // steps in a row without a growth
  int64_t longest_ungrown = 0;                 // clean steps up to an overflow at the same scale
  std::vector<double> rises = {}, falls = {};  // distinct ratios of scales in a row
  int64_t first_fall = 1;                      // overflows up to the first fall, with it
  std::vector<double> tolerances = {};  // between the shares of overflows that do not and do lower
  double lowest = 0, highest = 0;       // of the known scales
  bool stands_at_lowest = false;        // an overflow there did not lower it
  bool stands_at_highest = false;       // it did not grow there as it did elsewhere
  std::optional<int64_t> stated_interval = {};  // by the log in words
};

PathMarks FindMarks(const ScalePath& path);

// Calls try_parameters(parameters) for the sets of one policy, the nearest to its defaults first,
// until it returns true. Returns whether it did.
bool TryCandidates(const PolicyInfo& policy, const PathMarks& marks,
                   const std::function<bool(const ParameterMap&)>& try_parameters);

}  // namespace dlsim::sim
