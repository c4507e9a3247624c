// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dlsim/error.h"
#include "sim/advice/forward_text.h"
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
  for (const StepWindow& step : tuning.windows) {
    if (step.hopeless) continue;
    high += step.highest_scale < 1;
    low += step.highest_scale >= 1 && step.low > 0;
  }
  std::string text;
  if (low > 0) {
    text += fmt::format("; without loss scaling {} {} too much", Counted(low, "step"),
                        low == 1 ? "loses" : "lose");
  }
  if (high > 0) {
    text += fmt::format("; without loss scaling {} {}", Counted(high, "step"),
                        high == 1 ? "overflows" : "overflow");
  }
  return text;
}

// What else would be safe at all steps.
std::string Remedies(std::span<const FormatTuning> all, const FormatTuning& tuning) {
  std::string formats;
  for (const FormatTuning& other : all) {
    const bool is_safe = other.hopeless_steps <= tuning.hopeless_steps &&
                         other.verdict != Verdict::kFailsInForward &&
                         !CommonScalesOf(other.windows).empty();
    if (is_safe) formats += (formats.empty() ? "" : " or ") + other.format;
  }
  return (formats.empty() ? ": use " : ": " + formats + " has one; or use ") +
         "parts in float32 where layers differ, a smaller learning rate or clipping where steps "
         "differ";
}

}  // namespace

CommonScales CommonScalesOf(std::span<const StepWindow> windows) {
  const double lowest = std::ldexp(1.0, kLowestWindowExponent);
  CommonScales scales = {.low = lowest, .high = std::numeric_limits<double>::infinity()};
  for (const StepWindow& step : windows) {
    if (step.hopeless) continue;
    const double low = step.lowest_scale(), high = step.highest_scale;
    if (high < scales.high) scales.high = high, scales.high_step = step.step;
    if (low > scales.low) scales.low = low, scales.low_step = step.step;
  }
  scales.low_open = scales.low == lowest;
  return scales;
}

Headroom HeadroomOf(std::span<const StepWindow> windows) {
  std::vector<double> limits;
  for (const StepWindow& step : windows) {
    if (!step.hopeless) limits.push_back(step.finite_scale);
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

std::string_view ScalingAdvised(const FormatAdvice& advice) {
  switch (advice.verdict) {
    case Verdict::kAsIs:
      return "no scale needed";
    case Verdict::kWithScale:
      return advice.scale ? "static scale enough" : "dynamic scaling recommended";
    case Verdict::kNoScaleIsSafe:
    case Verdict::kOverflows:
    case Verdict::kFitsInForward:
    case Verdict::kFailsInForward:
      return "no scale helps";
  }
  return "";
}

std::string ReasonOf(const FormatTuning& tuning) {
  const size_t judged = tuning.steps - tuning.hopeless_steps;
  const std::string steps = Counted(judged, "step");
  const std::string is_safe =
      fmt::format("is safe at {} of {}", tuning.safest ? tuning.safest->steps : 0, steps);
  switch (tuning.verdict) {
    case Verdict::kAsIs:
      return "scale 1 " + is_safe +
             (tuning.choices.front().parameters.init > 1
                  ? "; a higher start also keeps the small channels of a tensor"
                  : "");
    case Verdict::kWithScale:
      return (tuning.scale ? "" : "no fixed scale is safe at all steps: ") +
             ScaleText(tuning.fixed_scale) + " " + is_safe +
             (tuning.scale ? WithoutScale(tuning) : "");
    case Verdict::kNoScaleIsSafe:
      return fmt::format("{} of {} {} too much at every scale that does not overflow",
                         tuning.empty_steps, steps, tuning.empty_steps == 1 ? "loses" : "lose");
    case Verdict::kOverflows:
      return fmt::format("only {} of {} {} finite as recorded", judged,
                         Counted(tuning.steps, "step"), judged == 1 ? "is" : "are");
    case Verdict::kFitsInForward:
      return ForwardFit(tuning);
    case Verdict::kFailsInForward:
      return ForwardFailure(tuning);
  }
  return "";
}

void NoteDoubts(std::span<const FormatTuning> all, FormatTuning& tuning) {
  const PolicyChoice& choice = tuning.choices.front();
  const auto note = [&](const std::string& text) { tuning.notes.push_back(text); };
  const int64_t interval = choice.parameters.interval;
  if (!choice.score.grew && interval >= static_cast<int64_t>(tuning.steps)) {
    note(fmt::format(
        "the growth interval of {} was never reached in {}: growth of the scale is untested",
        interval, Counted(tuning.steps, "recorded step")));
  }
  if (choice.score.events > 0) {
    note(fmt::format(
        "steps at which the original software would raise an error, since the scale is at its "
        "minimum: {}; this happens under every policy tried",
        choice.score.events));
  }
  if (tuning.hopeless_steps > 0) {
    note(fmt::format("steps that are not finite at any scale: {}", tuning.hopeless_steps));
  }
  if (tuning.empty_steps > 0) {
    note(fmt::format(
        "{} too much at every scale at which {} finite: a loss scale cannot help, but "
        "another format, parts in float32 or clipping can",
        Counted(tuning.empty_steps, "step") + (tuning.empty_steps == 1 ? " loses" : " lose"),
        tuning.empty_steps == 1 ? "it is" : "they are"));
  }
  if (CommonScalesOf(tuning.windows).empty()) {
    note("no loss scale is safe at all steps" + Remedies(all, tuning));
  }
  if (tuning.format == "cb16") {
    note("the Model Zoo accepts cbfloat16 only with dynamic loss scaling");
  } else if (tuning.format == "bf16") {
    note("the Model Zoo switches loss scaling off for bfloat16");
  }
}

}  // namespace dlsim::sim
