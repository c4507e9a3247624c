// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/step_facts.h"

#include <algorithm>
#include <cmath>

#include "sim/replay/largest_scale.h"

namespace dlsim::sim {

StepFacts FactsOf(const StepWindow& window, const Conversion& conversion, Checked checked) {
  StepFacts facts = {.step = window.step, .hopeless = window.hopeless};
  if (window.hopeless) {
    facts.tensor = window.high_tensor;
    return facts;
  }
  const float decides =
      checked == Checked::kAllGradients ? window.largest : window.largest_parameter;
  facts.highest = window.highest_scale;
  facts.limit = LargestFiniteScale(conversion, decides);
  facts.lowest = std::ldexp(1.0, window.low);
  facts.harm_below = window.harm_below;
  return facts;
}

double LostAt(const StepFacts& facts, double scale) {
  if (facts.hopeless || scale > facts.highest) return 1;
  if (scale >= facts.lowest) return 0;
  if (facts.harm_below.empty()) return 0;
  const int below = std::ilogb(facts.lowest) - 1 - std::ilogb(scale);
  const auto last = static_cast<int>(facts.harm_below.size()) - 1;
  return facts.harm_below[static_cast<size_t>(std::clamp(below, 0, last))];
}

}  // namespace dlsim::sim
