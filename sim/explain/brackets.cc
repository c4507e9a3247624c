// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/brackets.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

#include "sim/replay/largest_scale.h"

namespace dlsim::sim {

std::vector<GradientBracket> FindBrackets(std::span<const LoggedStep> steps,
                                          const Conversion& conversion) {
  std::vector<GradientBracket> brackets;
  for (size_t i = 0; i < steps.size(); ++i) {
    const double scale = steps[i].scale;
    const bool same = !brackets.empty() && std::bit_cast<uint64_t>(brackets.back().scale) ==
                                               std::bit_cast<uint64_t>(scale);
    if (!same) brackets.push_back({.first = i, .scale = scale});
    GradientBracket& bracket = brackets.back();
    bracket.last = i;
    ++(steps[i].overflow ? bracket.skipped : bracket.applied);
  }
  std::unordered_map<float, double> bounds;  // by scale
  for (GradientBracket& bracket : brackets) {
    const auto scale = static_cast<float>(bracket.scale);
    if (!(scale > 0) || std::isinf(scale)) continue;
    const auto [found, is_new] = bounds.try_emplace(scale);
    if (is_new) found->second = LargestMagnitude(conversion, scale);
    const double bound = found->second;
    if (bracket.applied > 0) bracket.at_most = bound;
    if (bracket.skipped > 0) bracket.above = bound;
  }
  return brackets;
}

BracketTotals TotalBrackets(std::span<const GradientBracket> brackets) {
  BracketTotals totals;
  for (const GradientBracket& bracket : brackets) {
    if (bracket.at_most) {
      totals.applied_at_most = std::max(totals.applied_at_most.value_or(0), *bracket.at_most);
      totals.last_at_most = bracket.at_most;
    }
    if (bracket.above) {
      totals.skipped_above = std::max(totals.skipped_above.value_or(0), *bracket.above);
    }
  }
  return totals;
}

}  // namespace dlsim::sim
