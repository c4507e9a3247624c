// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/advice.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "sim/advice/advice_text.h"
#include "sim/advice/change.h"
#include "sim/replay/replay_runs.h"
#include "sim/replay/step_sources.h"
#include "sim/scaled/scaled_text.h"

namespace dlsim::sim {
namespace {

// The step whose window ends first on one side, of those that hold the scale.
WindowBound BoundOf(const FormatWindows& windows, const SafeScales& range, bool low) {
  WindowBound bound;
  for (const StepWindow& step : windows.steps) {
    if (!step.Has(range.low)) continue;
    const bool decides = low ? step.low == range.low : step.high == range.high;
    const std::string& tensor = low ? step.low_tensor : step.high_tensor;
    if (decides && !tensor.empty()) return {step.step, tensor, low && step.channels_decide};
  }
  return bound;
}

void AddTensors(const FormatWindows& windows, FormatAdvice& advice) {
  HarmOverSteps all;
  for (const TensorHarm& tensor : windows.tensors) {
    if (tensor.noise()) {
      advice.noise_tensors.push_back(tensor.name);
      continue;
    }
    advice.tensors.push_back(tensor);
    if (tensor.harm.steps > 0) all.Add(tensor.harm.mean());
    if (tensor.first_step) advice.at_risk.push_back(tensor);
  }
  advice.mean_harm = all.mean();
  std::ranges::stable_sort(advice.at_risk, std::greater(),
                           [](const TensorHarm& tensor) { return tensor.larger().mean(); });
}

// Adds what the gradients say, which is all but the forward pass.
void AddGradients(const FormatWindows& windows, FormatAdvice& advice) {
  advice.steps = windows.steps.size();
  for (const StepWindow& step : windows.steps) {
    advice.hopeless_steps += step.hopeless;
    advice.empty_steps += step.empty() && !step.hopeless;
    advice.zero_steps += (step.largest == 0 || step.idle) && !step.hopeless;
    advice.idle_steps += step.largest > 0 && step.idle && !step.hopeless;
  }
  const std::optional<SafeScales> range = windows.safe_steps.Best();
  advice.steps_outside = advice.steps - (range ? range->steps : 0);
  advice.safest = range;
  const size_t judged = advice.steps - advice.hopeless_steps;
  const bool enough = 2 * (judged - advice.zero_steps) >= advice.steps;
  if (!enough || !range) {
    advice.verdict = enough ? Verdict::kNoScaleIsSafe : Verdict::kOverflows;
  } else if (judged - range->steps <= MostLost(judged)) {
    advice.window = range;
    advice.verdict = range->exponent == 0 ? Verdict::kAsIs : Verdict::kWithScale;
    advice.scale = std::ldexp(1.0, range->exponent);
    advice.low = BoundOf(windows, *range, true);
    advice.high = BoundOf(windows, *range, false);
  } else if (advice.empty_steps > MostLost(judged)) {
    advice.verdict = Verdict::kNoScaleIsSafe;
  } else {
    advice.verdict = Verdict::kWithScale;  // one that moves
  }
  AddTensors(windows, advice);
  advice.windows = windows.steps;
}

bool HasGradients(const FormatWindows& windows) { return !windows.tensors.empty(); }

// Steps that were run in the format decide on its forward pass, whatever single values suggest.
void AddShadow(const Shadow& shadow, FormatAdvice& advice) {
  const bool fails = shadow.fails != ShadowFailure::kNone;
  for (ForwardVerdict* forward : {&advice.forward, &advice.values}) {
    if (forward->state != ForwardState::kNotRecorded) forward->state = ForwardState::kFits;
  }
  if (!fails) return;
  if (shadow.FailsInBackward()) {
    advice.verdict = Verdict::kNoScaleIsSafe;
  } else if (shadow.fails != ShadowFailure::kGradients ||
             advice.verdict != Verdict::kNoScaleIsSafe) {
    advice.verdict = Verdict::kFailsInForward;
    advice.forward.state = ForwardState::kOverflows;
  }
}

FormatAdvice AdviseOnFormat(const FormatWindows& windows) {
  FormatAdvice advice;
  advice.format = windows.format.name;
  advice.forward = windows.forward;
  advice.values = windows.values;
  if (HasGradients(windows)) {
    AddGradients(windows, advice);
  } else {
    advice.steps = windows.steps.size();
    advice.verdict = Verdict::kFitsInForward;
  }
  advice.shadow = windows.shadow;
  if (advice.shadow) {
    AddShadow(*advice.shadow, advice);
    return advice;
  }
  for (const ForwardVerdict* forward : {&advice.forward, &advice.values}) {
    if (forward->state == ForwardState::kOverflows) advice.verdict = Verdict::kFailsInForward;
  }
  if (!advice.forward.Vanishing().empty()) advice.verdict = Verdict::kFailsInForward;
  return advice;
}

std::vector<Role> RolesIn(const FormatWindows& windows) {
  std::vector<Role> roles;
  for (const Role role : {Role::kGrad, Role::kActGrad}) {
    const bool present = std::ranges::any_of(windows.tensors, [&](const TensorHarm& tensor) {
      return tensor.role == role && tensor.harm.steps > 0;
    });
    if (present) roles.push_back(role);
  }
  if (windows.forward.steps > 0) roles.push_back(Role::kAct);
  if (windows.values.steps > 0) roles.push_back(Role::kValue);
  return roles;
}

}  // namespace

bool HasRangeOfFloat32(const Format& format) { return format.exponent_bits >= 8; }

PathPlace PlaceOf(const ReplayStep& step, const StepWindow& window) {
  if (window.empty()) return PathPlace::kNoneSafe;
  if (step.scale < std::ldexp(1.0, window.low)) return PathPlace::kBelow;
  if (step.scale <= std::ldexp(1.0, window.high)) return PathPlace::kInside;
  // Below the next power of two it is not known to overflow.
  const bool known = step.scale >= std::ldexp(2.0, window.high);
  return step.finite && !known ? PathPlace::kInside : PathPlace::kAbove;
}

PathInWindows CompareWithWindows(std::span<const ReplayStep> steps,
                                 std::span<const StepWindow> windows) {
  PathInWindows path;
  size_t* const counts[] = {&path.inside, &path.below, &path.above, &path.none_safe};
  for (size_t i = 0; i < std::min(steps.size(), windows.size()); ++i) {
    ++*counts[static_cast<size_t>(PlaceOf(steps[i], windows[i]))];
  }
  return path;
}

Advice WindowsOf(const StepSource& source, const AdviceRequest& request,
                 const ReplayOptions& options) {
  WindowFinder windows(NamedFormats(request.formats), request.conversion, options, request.recipe);
  windows.FindNoise(source);
  ReplayRuns observer({}, options);
  ForEachStep(source, options.step, [&](size_t i, Step& step) {
    windows.Take(i, step);
    observer.Take(i, step);
    return true;
  });
  return Advise(windows.TakeWindows(source), request.tensors);
}

Advice AdviseOn(const StepSource& source, const AdviceRequest& request,
                const ReplayOptions& options) {
  Advice advice = WindowsOf(source, request, options);
  AddChanges(source, request, options, advice);
  return advice;
}

Advice AdviseOn(const TraceReader& trace, const AdviceRequest& request,
                const ReplayOptions& options) {
  return AdviseOn(WithoutLosses(TraceSteps(trace, options.accumulate_steps)), request, options);
}

Advice Advise(std::span<const FormatWindows> windows, const std::string& tensors) {
  Advice advice;
  advice.tensors = tensors;
  for (const FormatWindows& of_format : windows)
    advice.formats.push_back(AdviseOnFormat(of_format));
  const auto rank = [](const FormatAdvice& format) {
    return std::tuple(format.verdict, !format.scale, format.steps_outside, format.mean_harm);
  };
  for (size_t f = 1; f < advice.formats.size(); ++f) {
    if (rank(advice.formats[f]) < rank(advice.formats[advice.best])) advice.best = f;
  }
  advice.recipe = windows.front().recipe;
  advice.looked_at = RolesIn(windows.front());
  advice.gradients = HasGradients(windows.front());
  advice.parameters_only =
      advice.gradients && std::ranges::count(advice.looked_at, Role::kActGrad) == 0;
  advice.channels = std::ranges::any_of(windows.front().tensors, [](const TensorHarm& tensor) {
    return tensor.channels.channels > 0;
  });
  advice.not_run = windows.front().not_run;
  advice.broken_losses = windows.front().broken_losses;
  advice.refused = windows.front().refused;
  advice.computed_in = windows.front().computed_in;
  advice.lines = AdviceLines(advice);
  return advice;
}

void AddScaled(std::vector<ScaledAdvice> scaled, Advice& advice) {
  if (scaled.empty()) return;
  advice.scaled = std::move(scaled);
  if (advice.formats.empty()) {
    const auto best = std::ranges::min_element(advice.scaled, {}, VerdictOn);
    advice.best = static_cast<size_t>(best - advice.scaled.begin());
    const std::set<Role>& roles = advice.scaled.front().looked_at;
    advice.looked_at = {roles.begin(), roles.end()};
    advice.parameters_only = !roles.contains(Role::kActGrad);
    advice.channels = true;
  }
  advice.lines = AdviceLines(advice);
}

}  // namespace dlsim::sim
