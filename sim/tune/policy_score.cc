// SPDX-License-Identifier: Apache-2.0
#include "sim/tune/policy_score.h"

#include <algorithm>
#include <cmath>

#include "sim/policies/projection.h"

namespace dlsim::sim {
namespace {

// Returns what the table knows of a scale, and notes if that is only a bound; null for a scale at
// which nothing is finite.
const ScaleColumn* ColumnFor(float scale, const ScaleTable& table, PolicyScore& score) {
  if (!(scale > 0) || !std::isfinite(scale)) return nullptr;
  const ScaleColumn* column = table.Find(scale);
  const bool is_new = std::ranges::count(score.inexact, scale) == 0;
  if (!column->exact && is_new) score.inexact.push_back(scale);
  return column;
}

}  // namespace

std::optional<PolicyScore> ScoreOf(const PolicyFamily& family, const ScaleParameters& parameters,
                                   const ScaleTable& table, double of_interest) {
  const NoProjections only_the_scaler;
  std::optional<ConfiguredScaler> configured = family.Make(parameters);
  if (!configured) return std::nullopt;
  LossScaler& scaler = configured->scaler;
  PolicyScore score = {.parameters = parameters, .mean_loss = 0, .inexact = {}};
  const size_t steps = table.step_count();
  float current = std::numeric_limits<float>::quiet_NaN();
  const ScaleColumn* column = nullptr;
  const double too_much = of_interest * static_cast<double>(steps) + 0.5;
  for (size_t i = 0; i < steps; ++i) {
    const double scale = scaler.scale();
    if (static_cast<float>(scale) != current) {
      score.grew |= i > 0 && static_cast<float>(scale) > current;
      current = static_cast<float>(scale);
      column = ColumnFor(current, table, score);
      score.min_scale = i == 0 ? scale : std::fmin(score.min_scale, scale);
      score.max_scale = std::fmax(score.max_scale, scale);
    }
    const bool finite = column != nullptr && column->finite[i] != 0;
    const ScalerDecision decision = scaler.Next({.overflow = !finite});
    score.mean_loss += finite ? column->lost[i] : 1.0;
    score.skipped += !finite;
    if (score.skipped == i + 1) score.first_skips = score.skipped;
    score.events += decision.event.has_value();
    if (decision.event && decision.event->fatal) {
      score.mean_loss += static_cast<double>(steps - i - 1);
      score.skipped += steps - i - 1;
      break;
    }
    if (score.mean_loss > too_much) {
      score.given_up = true;
      break;
    }
  }
  if (steps > 0) score.mean_loss /= static_cast<double>(steps);
  return score;
}

double StaticLoss(const ScaleColumn& column) {
  double lost = 0;
  for (size_t i = 0; i < column.lost.size(); ++i) {
    lost += column.finite[i] != 0 ? column.lost[i] : 1.0;
  }
  return column.lost.empty() ? 0 : lost / static_cast<double>(column.lost.size());
}

std::vector<double> LeastLosses(const ScaleTable& table) {
  std::vector<double> least;
  const std::vector<float> scales = table.MeasuredScales();
  for (size_t i = 0; i < table.facts().size(); ++i) {
    const StepFacts& fact = table.facts()[i];
    // A lower scale loses more, so that the next scale above the limit bounds what is possible.
    const auto above =
        std::ranges::lower_bound(scales, fact.limit, {}, [](float scale) { return double{scale}; });
    const double lost = above == scales.end() ? 0 : table.Find(*above)->lost[i];
    least.push_back(fact.hopeless ? 1.0 : lost);
  }
  return least;
}

}  // namespace dlsim::sim
