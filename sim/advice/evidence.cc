// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dlsim/error.h"
#include "sim/advice/policy_score.h"
#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

double At(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

// What becomes of the steps at scale 1, as the verdict counts them.
std::string WithoutScale(const FormatTuning& tuning) {
  size_t low = 0, high = 0;
  for (const StepFacts& step : tuning.facts) {
    if (step.hopeless) continue;
    high += step.highest < 1;
    low += step.highest >= 1 && step.lowest > 1;
  }
  std::string text;
  if (low > 0) {
    text += fmt::format("; without a scale {} {} too much", Counted(low, "step"),
                        low == 1 ? "loses" : "lose");
  }
  if (high > 0) {
    text += fmt::format("; without a scale {} {}", Counted(high, "step"),
                        high == 1 ? "overflows" : "overflow");
  }
  return text;
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

ScaleWindow WindowOf(const std::vector<StepFacts>& facts) {
  const double lowest = std::ldexp(1.0, kLowestWindowExponent);
  ScaleWindow window = {.low = lowest, .high = std::numeric_limits<double>::infinity()};
  for (const StepFacts& step : facts) {
    if (step.hopeless) continue;
    if (step.highest < window.high) window.high = step.highest, window.high_step = step.step;
    if (step.lowest > window.low) window.low = step.lowest, window.low_step = step.step;
  }
  window.low_open = window.low == lowest;
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

void Judge(const FormatAdvice& advice, FormatTuning& tuning) {
  const size_t judged = advice.steps - advice.hopeless_steps;
  const size_t served = advice.most_served ? advice.most_served->served : 0;
  const std::string scale = ScaleText(tuning.best_static.scale);
  switch (advice.verdict) {
    case FormatVerdict::kAsIs:
      tuning.verdict = TuneVerdict::kNoScaleNeeded;
      tuning.reason = fmt::format("scale 1 serves {} of {}", served, Counted(judged, "step"));
      if (tuning.choices.front().score.parameters.init > 1) {
        tuning.reason += "; if a scaler must run, start it two binades below overflow";
      }
      return;
    case FormatVerdict::kWithScale:
      tuning.verdict = advice.scale ? TuneVerdict::kStaticEnough : TuneVerdict::kDynamic;
      tuning.reason = fmt::format("{} serves {} of {}", scale, served, Counted(judged, "step"));
      if (advice.scale) {
        tuning.reason += WithoutScale(tuning);
      } else {
        tuning.reason = "no fixed scale serves all: " + tuning.reason;
      }
      return;
    case FormatVerdict::kNoScaleServes:
      tuning.verdict = TuneVerdict::kNoScaleHelps;
      tuning.reason =
          fmt::format("{} of {} {} too much at each scale that fits", advice.empty_steps,
                      Counted(judged, "step"), advice.empty_steps == 1 ? "loses" : "lose");
      return;
    case FormatVerdict::kOverflows:
      tuning.verdict = TuneVerdict::kNoScaleHelps;
      tuning.reason = fmt::format("only {} of {} {} finite as recorded", judged,
                                  Counted(advice.steps, "step"), judged == 1 ? "is" : "are");
  }
}

void NoteDoubts(FormatTuning& tuning, const TuneResult& result) {
  const PolicyChoice& choice = tuning.choices.front();
  const auto note = [&](const std::string& text) { tuning.notes.push_back(text); };
  const auto steps = static_cast<int64_t>(result.steps);
  if (!choice.score.grew && choice.score.parameters.interval >= steps) {
    note(
        fmt::format("the interval of {} was never reached in {}: how the scale grows is not tested",
                    choice.score.parameters.interval, Counted(result.steps, "recorded step")));
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
        fmt::format("{} too much at every scale at which {} finite: another format, a scale per "
                    "layer or clipping can help, a loss scale cannot",
                    Counted(tuning.unscalable_steps, "step") +
                        (tuning.unscalable_steps == 1 ? " loses" : " lose"),
                    tuning.unscalable_steps == 1 ? "it is" : "they are"));
  }
  if (tuning.window.empty()) note("no scale suits all steps" + Remedies(tuning, result));
  if (tuning.format == "cb16") {
    note("the Model Zoo takes cbfloat16 only with dynamic loss scaling");
  } else if (tuning.format == "bf16") {
    note("the Model Zoo switches loss scaling off for bfloat16");
  }
}

}  // namespace dlsim::sim
