// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/advice.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "dlsim/error.h"
#include "sim/replay/layer_name.h"
#include "sim/replay/replay_runs.h"
#include "sim/replay/step_sources.h"
#include "sim/scaled/scaled.h"

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

// What to change where a format fails.

namespace {

constexpr std::string_view kRoot = "(root)";

bool Matches(const std::string& pattern, const std::string& name) {
  // A glob of modules is none of the operations in them.
  if ((pattern.find('/') == pattern.npos) != (name.find('/') == name.npos)) return false;
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// Parts of a model that are kept in float32: names or globs (fnmatch) of modules, whose parts are
// kept with them, and of operations that a module's own forward calls, `<module>/<operation>`.
class KeptUnits {
 public:
  explicit KeptUnits(std::span<const std::string> names);

  // Whether a recorded tensor is of such a part.
  bool Has(std::string_view tensor) const;

 private:
  std::set<std::string, std::less<>> names_;
  std::vector<std::string> globs_;
};

KeptUnits::KeptUnits(std::span<const std::string> names) : names_(names.begin(), names.end()) {
  for (const std::string& name : names) {
    if (name.find_first_of("*?[") != name.npos) globs_.push_back(name);
  }
}

bool KeptUnits::Has(std::string_view tensor) const {
  if (names_.contains(kRoot)) return true;
  const auto matches = [&](const std::string& name) {
    return names_.contains(name) || std::ranges::any_of(globs_, [&](const std::string& glob) {
             return Matches(glob, name);
           });
  };
  const std::string module = WithoutCall(LayerOf(tensor));
  const std::string stem = StemOf(OutputOf(tensor));
  if (IsOfOperation(stem) && matches(WithoutCall(stem))) return true;
  for (size_t end = module.size(); end != 0 && end != module.npos;
       end = module.rfind('.', end - 1)) {
    if (matches(module.substr(0, end))) return true;
  }
  return false;
}

// What a plan of the recorder's means for the gradients of the rest.
Change ChangeBy(const Shadow::Plan& plan, const FormatAdvice& format, const StepSource& source,
                AdviceRequest request, ReplayOptions options) {
  Change change;
  change.keep_float32 = plan.keep_float32;
  change.sources = plan.sources;
  change.loss_in_float32 = plan.loss_in_float32;
  change.share = plan.share;
  change.steps = plan.steps;
  for (const Shadow::Culprit& culprit : format.shadow->culprits) {
    change.because.push_back(culprit.part + ".act");
  }
  for (const std::string& module : format.shadow->modules) {
    change.because.push_back(module + ".act_grad");
  }
  FormatAdvice rest = format;
  if (!plan.keep_float32.empty() && !(format.tensors.empty() && format.noise_tensors.empty())) {
    request.formats = {format.format};
    options.observer = nullptr;
    const KeptUnits kept(plan.keep_float32);
    const StepSource without =
        Without(source, [&kept](const TensorInfo& tensor) { return kept.Has(tensor.name); });
    rest = WindowsOf(without, request, options).formats.front();
  }
  // The steps hold at the plan's scale, whatever is said of those at which float32 was recorded.
  change.scale = plan.scale;
  change.then = plan.scale == 1 ? Verdict::kAsIs : Verdict::kWithScale;
  if (rest.window) {
    change.window = rest.window;
    change.scale = std::ldexp(1.0, rest.window->exponent);
    change.then = rest.window->exponent == 0 ? Verdict::kAsIs : Verdict::kWithScale;
  }
  return change;
}

// What else than keeping parts in float32 may help.
std::string InsteadFor(const Advice& advice) {
  const bool bf16 = std::ranges::any_of(advice.formats, [](const FormatAdvice& other) {
    return other.format == "bf16" && Trains(other);
  });
  return bf16 ? "use bf16" : "";
}

}  // namespace

StepSource KeptInFloat32(StepSource source, std::span<const std::string> names) {
  for (const std::string& name : names) {
    const KeptUnits kept({&name, 1});
    std::string any;
    bool found = false;
    const auto look = [&](std::span<const TensorInfo> tensors) {
      for (const TensorInfo& tensor : tensors) {
        if (any.empty()) any = WithoutCall(LayerOf(tensor.name));
        found |= kept.Has(tensor.name);
      }
    };
    for (size_t i = 0; i < source.step_count && !found; ++i) {
      const auto step = source.describe(i);
      look(step->gradients());
      look(step->forward());
    }
    if (found) continue;
    throw UsageError("--float32", "no module of the recording matches", "such as " + Quoted(any),
                     Quoted(name));
  }
  const KeptUnits kept(names);
  StepSource without = Without(std::move(source),
                               [kept](const TensorInfo& tensor) { return kept.Has(tensor.name); });
  without.float32.assign(names.begin(), names.end());
  return without;
}

Shadow WithKept(Shadow shadow, std::span<const std::string> names) {
  if (!shadow.plan) return shadow;
  Shadow::Plan& plan = *shadow.plan;
  const KeptUnits kept(names);
  Shadow::Plan rest = plan;
  rest.keep_float32.clear();
  rest.sources.clear();
  for (size_t i = 0; i < plan.keep_float32.size(); ++i) {
    if (kept.Has(plan.keep_float32[i] + ".act")) continue;
    rest.keep_float32.push_back(plan.keep_float32[i]);
    rest.sources.push_back(plan.sources[i]);
  }
  if (rest.keep_float32.empty() && !rest.loss_in_float32) {
    Shadow holds;
    holds.steps = plan.steps;
    holds.scale = plan.scale;
    holds.ceilings = plan.ceilings;
    return holds;
  }
  plan = rest;
  return shadow;
}

void AddChanges(const StepSource& source, const AdviceRequest& request,
                const ReplayOptions& options, Advice& advice) {
  bool changed = !advice.float32.empty();
  for (FormatAdvice& format : advice.formats) {
    if (!Fails(format)) continue;
    changed = true;
    if (advice.recipe == Recipe::kAutocast) format.instead = InsteadFor(advice);
    if (format.shadow && format.shadow->plan) {
      format.change = ChangeBy(*format.shadow->plan, format, source, request, options);
    }
  }
  if (changed) advice.lines = AdviceLines(advice);
}

}  // namespace dlsim::sim
