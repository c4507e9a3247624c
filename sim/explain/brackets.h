// SPDX-License-Identifier: Apache-2.0
// What overflows at known scales say of the largest gradient.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dlsim/codec.h"
#include "sim/explain/policy_fit.h"

namespace dlsim::sim {

// Steps in a row that used one scale. Magnitudes are unscaled.
struct GradientBracket {
  size_t first = 0, last = 0;  // indices of steps
  double scale = 0;
  int64_t applied = 0, skipped = 0;
  std::optional<double> at_most = {};  // the largest gradient of each applied step
  std::optional<double> above = {};  // that of each skipped step, or it was not finite at any scale
};

// Returns one bracket per run of steps with the same scale, for training in `conversion`'s format.
// Steps whose scale is not known (NaN), zero or infinite have no bounds.
std::vector<GradientBracket> FindBrackets(std::span<const LoggedStep> steps,
                                          const Conversion& conversion);

// The bounds over all steps.
struct BracketTotals {
  std::optional<double> applied_at_most = {};  // no applied step had a larger gradient
  std::optional<double> skipped_above = {};    // the largest bound that a skipped step exceeded
  std::optional<double> last_at_most = {};     // of the last run with an applied step
};
BracketTotals TotalBrackets(std::span<const GradientBracket> brackets);

}  // namespace dlsim::sim
