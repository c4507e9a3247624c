// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/policy_score.h"

#include <algorithm>
#include <cmath>

#include "sim/replay/harm.h"

namespace dlsim::sim {

double LossOf(const ReplayStep& step, const Conversion& conversion) {
  if (step.activations.nonfinite_outputs > 0) return 1;
  const bool parameters_only = step.activation_harm.worst_tensor.empty();
  const double harm = std::fmax(step.harm.mean, step.activation_harm.mean);
  return harm <= HarmLimit(conversion, parameters_only) ? 0 : std::fmin(1, harm);
}

PolicyScore ScoreOf(const ReplayResult& result, size_t steps, const Conversion& conversion) {
  PolicyScore score;
  score.mean_loss = static_cast<double>(steps - std::min(steps, result.steps.size()));
  for (size_t i = 0; i < result.steps.size(); ++i) {
    const ReplayStep& step = result.steps[i];
    const bool lost = step.skipped || !step.finite;
    score.mean_loss += lost ? 1.0 : LossOf(step, conversion);
    score.skipped += lost;
    if (score.skipped == i + 1) score.first_skips = score.skipped;
    score.grew |= i > 0 && step.scale > result.steps[i - 1].scale;
  }
  score.events = result.events.size();
  if (steps > 0) score.mean_loss /= static_cast<double>(steps);
  if (result.steps.empty()) return score;
  score.min_scale = result.summary.min_scale;
  score.max_scale = result.summary.max_scale;
  score.final_scale = result.steps.back().next_scale;
  return score;
}

PolicyScore Predict(LossScaler scaler, std::span<const StepWindow> windows) {
  PolicyScore score = {.mean_loss = 0};
  const size_t steps = windows.size();
  for (size_t i = 0; i < steps; ++i) {
    const double scale = scaler.scale();
    const bool finite = !windows[i].hopeless && scale <= windows[i].finite_scale;
    const ScalerDecision decision = scaler.Next({.overflow = !finite});
    score.mean_loss += finite ? windows[i].LossAt(scale) : 1.0;
    score.skipped += !finite;
    score.events += decision.event.has_value();
    if (decision.event && decision.event->fatal) {
      score.mean_loss += static_cast<double>(steps - i - 1);
      break;
    }
  }
  if (steps > 0) score.mean_loss /= static_cast<double>(steps);
  return score;
}

double LeastLoss(std::span<const StepWindow> windows) {
  double lost = 0;
  for (const StepWindow& step : windows) {
    const bool is_safe = step.lowest_scale() <= step.highest_scale || step.harm_below.empty();
    lost += step.hopeless ? 1 : is_safe ? 0 : step.harm_below.front();
  }
  return windows.empty() ? 0 : lost / static_cast<double>(windows.size());
}

}  // namespace dlsim::sim
