// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/skip_summary.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dlsim::sim {
namespace {

// The scale of a Python float falls to 0 within fewer overflows.
constexpr int64_t kMostOverflows = 20000;

// A scale that stays the same through this many overflows is at its floor: no hysteresis is as
// long.
constexpr int64_t kUnchangedOverflows = 1200;

// Returns the index of the first of kSettledSteps applied steps in a row; the end if there are
// none.
size_t EndOfWarmUp(std::span<const LoggedStep> steps) {
  int64_t applied = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    applied = steps[i].overflow ? 0 : applied + 1;
    if (applied == kSettledSteps) return i + 1 - static_cast<size_t>(kSettledSteps);
  }
  return steps.size();
}

// Of a log of overflows only: the warm-up ends where the scale has grown.
size_t EndOfFirstDescent(std::span<const LoggedStep> steps) {
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i].scale > steps[i - 1].scale || steps[i].clean_before >= kSettledSteps) return i;
  }
  return steps.size();
}

bool Grows(std::span<const LoggedStep> steps) {
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i].scale > steps[i - 1].scale) return true;
  }
  return false;
}

void CountRuns(std::span<const LoggedStep> steps, SkipSummary& skips) {
  int64_t run = 0;
  for (const LoggedStep& step : steps) {
    run = step.overflow ? run + 1 : 0;
    skips.longest_run = std::max(skips.longest_run, run);
    if (step.overflow) ++skips.skipped;
  }
}

// Returns the lowest known scale of the first `count` steps; of none of them, the next known one.
double LowestScale(std::span<const LoggedStep> steps, size_t count) {
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < steps.size(); ++i) {
    if (i >= count && std::isfinite(lowest)) break;
    if (steps[i].scale < lowest) lowest = steps[i].scale;
  }
  return std::isfinite(lowest) ? lowest : 0;
}

// The falls since the last growth, if they are many, or if it is certain that they are fatal.
void FindDivergence(std::span<const LoggedStep> steps, size_t start, bool certain,
                    SkipSummary& skips) {
  size_t last_growth = start;
  for (size_t i = start + 1; i < steps.size(); ++i) {
    if (steps[i].scale > steps[i - 1].scale) last_growth = i;
  }
  int64_t falls = 0;
  std::optional<size_t> first;
  for (size_t i = last_growth; i < steps.size(); ++i) {
    if (!steps[i].overflow) continue;
    if (!first) first = i;
    const bool falls_next = i + 1 == steps.size() || steps[i + 1].scale < steps[i].scale;
    if (falls_next) ++falls;
    ++skips.tail_skips;
  }
  const size_t before = std::max<size_t>(last_growth - start, 1);
  const bool new_lows =
      steps.back().scale <= LowestScale(steps.subspan(start), before) / kFallOfDivergence;
  if (!certain && (falls < kFallsOfDivergence || !new_lows)) return;
  skips.kind = SkipKind::kDivergence;
  skips.tail = first;
}

}  // namespace

SkipSummary JudgeSkips(std::span<const LoggedStep> steps, const SkipContext& context) {
  SkipSummary skips = {.steps = static_cast<int64_t>(steps.size())};
  CountRuns(steps, skips);
  if (context.without_scale) skips.kind = SkipKind::kUnknown;
  if (context.stopped) skips.kind = SkipKind::kDivergence;
  if (skips.skipped == 0) return skips;
  size_t settled = context.from_start ? EndOfWarmUp(steps) : 0;
  if (!context.counted) settled = std::min(settled, EndOfFirstDescent(steps));
  skips.warm_up_skips = std::ranges::count_if(steps.first(settled), &LoggedStep::overflow);
  const int64_t later = skips.skipped - skips.warm_up_skips;
  const auto steps_after = static_cast<int64_t>(steps.size() - settled);
  if (context.counted && steps_after > 0) {
    skips.share = static_cast<double>(later) / static_cast<double>(steps_after);
    if (context.growth_interval.value_or(0) > 0) {
      skips.expected_share = 1 / (static_cast<double>(*context.growth_interval) + 1);
    }
  }
  // A descent to below 1, or with an overflow at 1, has not found a scale.
  const LoggedStep& last = steps.back();
  const bool unscaled =
      last.scale < 1 || (last.scale == 1 && last.overflow) || context.last_scale.value_or(1) < 1;
  const bool descends = context.from_start ? later == 0 && settled == steps.size() : !Grows(steps);
  const bool lost = unscaled && descends;
  if (later == 0 && !lost && !context.stopped) {
    skips.kind = SkipKind::kWarmUp;
    return skips;
  }
  skips.kind = SkipKind::kSteady;
  if (skips.share && skips.expected_share && *skips.share > 3 * *skips.expected_share &&
      later > 2) {
    skips.kind = SkipKind::kFrequent;
  }
  FindDivergence(steps, later == 0 ? 0 : settled, lost || context.stopped, skips);
  return skips;
}

std::optional<MinimumForecast> ForecastMinimum(LossScaler scaler) {
  MinimumForecast forecast = {.minimum = scaler.scale()};
  ScalerInput input = {.overflow = true, .absmax = std::numeric_limits<float>::infinity()};
  int64_t unchanged = 0;
  for (int64_t i = 1; i <= kMostOverflows && unchanged < kUnchangedOverflows; ++i) {
    const ScalerDecision decision = scaler.Next(input);
    if (!decision.skip) return std::nullopt;
    if (scaler.scale() < forecast.minimum) {
      forecast.minimum = scaler.scale();
      forecast.overflows = i;
      unchanged = 0;
    } else {
      ++unchanged;
    }
    if (!decision.event || !decision.event->fatal) continue;
    forecast.raises = decision.event->type;
    forecast.overflows_to_raise = i;
    break;
  }
  return forecast;
}

}  // namespace dlsim::sim
