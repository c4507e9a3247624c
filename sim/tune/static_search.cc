// SPDX-License-Identifier: Apache-2.0
#include "sim/tune/static_search.h"

#include <algorithm>
#include <cmath>

#include "dlsim/ladder.h"
#include "sim/tune/policy_score.h"

namespace dlsim::sim {
namespace {

constexpr size_t kMostLimits = 64;
constexpr size_t kMeasuredAtOnce = 8;
constexpr int kMostStaticRounds = 8;

double BestMeasured(const ScaleTable& table) {
  double best = 1;
  for (const float scale : table.MeasuredScales()) {
    best = std::fmin(best, StaticLoss(*table.Find(scale)));
  }
  return best;
}

}  // namespace

std::vector<float> ScalesBetweenPowers(const TuneSource& source, const ScaleTable& table) {
  if (!source.ladder.empty()) return source.ladder;
  std::vector<float> limits;
  for (const StepFacts& fact : table.facts()) {
    const bool in_range = fact.limit >= std::ldexp(1.0, kLowestScaleExponent) &&
                          fact.limit <= std::ldexp(1.0, kHighestScaleExponent);
    if (in_range) limits.push_back(static_cast<float>(fact.limit));
  }
  std::sort(limits.begin(), limits.end());
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  const size_t stride = limits.size() / kMostLimits + 1;
  std::vector<float> chosen;
  for (size_t i = 0; i < limits.size(); ++i) {
    // The lowest limits decide most often.
    if (i < kMostLimits / 2 || i % stride == 0) chosen.push_back(limits[i]);
  }
  return chosen;
}

void MeasureStaticScales(const TuneSource& source, ScaleTable& table) {
  const std::vector<float> scales = ScalesBetweenPowers(source, table);
  for (int round = 0; round < kMostStaticRounds; ++round) {
    const double best = BestMeasured(table);
    std::vector<std::pair<double, float>> promising;
    for (const float scale : scales) {
      if (table.Measured(scale)) continue;
      const double bound = StaticLoss(*table.Find(scale));
      if (bound < best - kLossResolution / 4) promising.emplace_back(bound, scale);
    }
    if (promising.empty()) return;
    std::sort(promising.begin(), promising.end());
    if (promising.size() > kMeasuredAtOnce) promising.resize(kMeasuredAtOnce);
    ColumnRequest request = {&table, {}};
    for (const auto& item : promising) request.scales.push_back(item.second);
    MeasureColumns(source, {&request, 1});
  }
}

}  // namespace dlsim::sim
