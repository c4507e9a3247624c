// SPDX-License-Identifier: Apache-2.0
#include "sim/tune/evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dlsim/error.h"
#include "sim/policies/static_scale.h"
#include "sim/replay/scale_plot.h"
#include "sim/tune/policy_score.h"

namespace dlsim::sim {
namespace {

// Returns the lowest scale measured at which the step loses at most what is negligible;
// infinity if none is.
double LowestGoodScale(const ScaleTable& table, const std::vector<float>& scales, size_t step) {
  // The loss falls as the scale rises.
  const auto good = std::ranges::partition_point(
      scales, [&](float scale) { return table.Find(scale)->lost[step] > kNegligibleLoss; });
  return good == scales.end() ? std::numeric_limits<double>::infinity() : double{*good};
}

// How many more steps a static scale makes finite than scale 1; empty if none.
std::string MoreFiniteSteps(const ScaleTable& table, const StaticChoice& choice) {
  const ScaleColumn& one = *table.Find(1.0f);
  const auto nonfinite = static_cast<uint64_t>(std::count(one.finite.begin(), one.finite.end(), 0));
  if (nonfinite <= choice.nonfinite_steps) return "";
  return fmt::format(" (finite steps: {} instead of {} of {})",
                     one.finite.size() - choice.nonfinite_steps, one.finite.size() - nonfinite,
                     one.finite.size());
}

// Why no scale does better than 1 although something is lost there.
std::string NoBetterThanOne(const FormatTuning& tuning, const ScaleTable& table) {
  uint64_t avoidable = 0;
  double limit = 1;
  for (const StepFacts& fact : table.facts()) {
    if (fact.hopeless || fact.limit >= 1) continue;
    ++avoidable;
    limit = std::fmin(limit, fact.limit);
  }
  std::string text =
      fmt::format("every scale loses at least as much as scale 1, {:.3g}", tuning.loss_at_one);
  if (avoidable == 0) return text;
  return text +
         fmt::format(": {} steps would need a lower one, down to {}", avoidable, ScaleText(limit));
}

double At(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

// What else would serve all steps.
std::string Remedies(const FormatTuning& tuning, const TuneResult& result) {
  std::string formats;
  for (const FormatTuning& other : result.formats) {
    const bool serves = !other.window.empty() && other.hopeless_steps <= tuning.hopeless_steps;
    if (serves) formats += (formats.empty() ? "" : " or ") + other.format;
  }
  return (formats.empty() ? ": " : ": format " + formats + " has one that does; else ") +
         "a scale per layer where layers differ, a smaller learning rate or clipping where steps "
         "do";
}

}  // namespace

ScaleWindow WindowOf(const ScaleTable& table) {
  const std::vector<float> scales = table.MeasuredScales();
  ScaleWindow window = {.low = scales.front(), .high = std::numeric_limits<double>::infinity()};
  for (size_t i = 0; i < table.facts().size(); ++i) {
    const StepFacts& fact = table.facts()[i];
    if (fact.hopeless) continue;
    if (fact.limit < window.high) window.high = fact.limit, window.high_step = fact.step;
    const double low = LowestGoodScale(table, scales, i);
    if (low > window.low) window.low = low, window.low_step = fact.step;
  }
  window.low_open = window.low == double{scales.front()};
  return window;
}

Headroom HeadroomOf(const std::vector<StepFacts>& facts) {
  std::vector<double> limits;
  for (const StepFacts& fact : facts) {
    if (!fact.hopeless) limits.push_back(fact.limit);
  }
  if (limits.empty()) return {};
  const auto middle = limits.begin() + static_cast<ptrdiff_t>((limits.size() + 1) / 2);
  Headroom room = {.last = limits.back(),
                   .min_first_half = *std::min_element(limits.begin(), middle),
                   .min_second_half = middle == limits.end()
                                          ? limits.back()
                                          : *std::min_element(middle, limits.end())};
  std::sort(limits.begin(), limits.end());
  room.min = limits.front();
  room.fifth_percentile = At(limits, 0.05);
  room.median = At(limits, 0.5);
  room.spread_binades = std::log2(limits.back() / limits.front());
  return room;
}

void Judge(FormatTuning& tuning, const ScaleTable& table) {
  const std::vector<double> least = LeastLosses(table);
  double total = 0;
  for (size_t i = 0; i < least.size(); ++i) {
    const bool hopeless = table.facts()[i].hopeless;
    tuning.hopeless_steps += hopeless;
    tuning.unscalable_steps += !hopeless && least[i] > kNegligibleLoss;
    total += least[i];
  }
  const double steps = static_cast<double>(std::max<size_t>(1, least.size()));
  tuning.least_loss = total / steps;
  const PolicyChoice& choice = tuning.choices.front();
  const double best = std::fmin(choice.score.mean_loss, tuning.best_static.mean_loss);
  const double unavoidable = static_cast<double>(tuning.hopeless_steps) / steps;
  if (tuning.hopeless_steps == least.size()) {
    tuning.verdict = TuneVerdict::kNoScaleHelps;
    tuning.reason = "no step is finite at any scale";
  } else if (tuning.loss_at_one <= best + kNegligibleLoss) {
    const bool harmless = tuning.loss_at_one <= unavoidable + kNegligibleLoss;
    tuning.verdict = harmless ? TuneVerdict::kNoScaleNeeded : TuneVerdict::kNoScaleHelps;
    tuning.reason =
        harmless ? "at scale 1 the steps that can be finite lose no more than " +
                       fmt::format("{:.1e}", std::fmax(0, tuning.loss_at_one - unavoidable)) +
                       " on average"
                 : NoBetterThanOne(tuning, table);
  } else if (tuning.best_static.mean_loss <= best + kNegligibleLoss) {
    tuning.verdict = TuneVerdict::kStaticEnough;
    tuning.reason = fmt::format("{} loses {:.3g} where scale 1 loses {:.3g}",
                                ScaleText(tuning.best_static.scale), tuning.best_static.mean_loss,
                                tuning.loss_at_one) +
                    MoreFiniteSteps(table, tuning.best_static);
  } else {
    tuning.verdict = TuneVerdict::kDynamic;
    tuning.reason = fmt::format("a moving scale loses {:.3g}, the best static one {:.3g}",
                                choice.score.mean_loss, tuning.best_static.mean_loss);
  }
}

void NoteDoubts(FormatTuning& tuning, const TuneResult& result) {
  const PolicyChoice& choice = tuning.choices.front();
  const auto note = [&](const std::string& text) { tuning.notes.push_back(text); };
  const auto steps = static_cast<int64_t>(result.steps);
  if (!choice.score.grew && choice.score.parameters.interval >= steps) {
    note(
        fmt::format("the interval of {} was never reached in {} recorded steps: how the scale "
                    "grows is not tested",
                    choice.score.parameters.interval, steps));
  }
  if (choice.score.events > 0) {
    note(
        fmt::format("steps at which the original would raise an error, as the scale is at its "
                    "floor: {}; none of the policies tried is without",
                    choice.score.events));
  }
  if (tuning.hopeless_steps > 0) {
    note(fmt::format("steps that are not finite at any scale: {}", tuning.hopeless_steps));
  }
  if (tuning.unscalable_steps > 0) {
    note(
        fmt::format("{} steps lose too much at every scale at which they are finite: another "
                    "format, a scale per layer or clipping can help, a loss scale cannot",
                    tuning.unscalable_steps));
  }
  if (tuning.window.empty()) note("no scale suits all steps" + Remedies(tuning, result));
  if (tuning.format == "cb16") {
    note("the Model Zoo takes cbfloat16 only with dynamic loss scaling");
  } else if (tuning.format == "bf16") {
    note("the Model Zoo switches loss scaling off for bfloat16");
  }
}

}  // namespace dlsim::sim
