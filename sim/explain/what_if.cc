// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/what_if.h"

#include <algorithm>
#include <limits>

namespace dlsim::sim {

Certainty Judge(const LoggedStep& step, double scale) {
  if (step.overflow && scale >= step.scale) return Certainty::kSkipped;
  if (!step.overflow && scale <= step.scale) return Certainty::kApplied;
  return Certainty::kUncertain;
}

WhatIfRun RunWhatIf(LossScaler scaler, std::span<const LoggedStep> steps, Certainty uncertain_as) {
  WhatIfRun run = {.first_scale = scaler.scale(), .min_scale = scaler.scale()};
  for (const LoggedStep& step : steps) {
    Certainty certainty = Judge(step, scaler.scale());
    if (certainty == Certainty::kUncertain) {
      ++run.uncertain;
      certainty = uncertain_as;
    }
    run.min_scale = std::min(run.min_scale, scaler.scale());
    ScalerInput input = {.overflow = certainty == Certainty::kSkipped};
    if (input.overflow) input.absmax = std::numeric_limits<float>::infinity();
    const ScalerDecision decision = scaler.Next(input);
    ++run.steps;
    if (decision.skip) ++run.skipped;
    if (!decision.event || !decision.event->fatal) continue;
    run.raises = decision.event->type;
    break;
  }
  run.last_scale = scaler.scale();
  return run;
}

}  // namespace dlsim::sim
