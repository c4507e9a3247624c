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
WindowBound BoundOf(const FormatAdvice& format, bool low) {
  const SafeScales& range = *format.window;
  for (const StepWindow& step : format.windows) {
    if (!step.Has(range.low)) continue;
    const bool decides = low ? step.low == range.low : step.high == range.high;
    const std::string& tensor = low ? step.low_tensor : step.high_tensor;
    if (decides && !tensor.empty()) return {step.step, tensor, low && step.channels_decide};
  }
  return {};
}

// Sorts out noise, and names what is at risk.
void JudgeTensors(FormatAdvice& format) {
  std::erase_if(format.tensors, [&](const TensorHarm& tensor) {
    if (tensor.noise()) format.noise_tensors.push_back(tensor.name);
    return tensor.noise();
  });
  HarmOverSteps all;
  for (const TensorHarm& tensor : format.tensors) {
    if (tensor.harm.steps > 0) all.Add(tensor.harm.mean());
    if (tensor.first_step) format.at_risk.push_back(tensor);
  }
  format.mean_harm = all.mean();
  std::ranges::stable_sort(format.at_risk, std::greater(),
                           [](const TensorHarm& tensor) { return tensor.larger().mean(); });
}

// Adds what the gradients say, which is all but the forward pass.
void JudgeGradients(FormatAdvice& format) {
  for (const StepWindow& step : format.windows) {
    format.hopeless_steps += step.hopeless;
    format.empty_steps += step.empty() && !step.hopeless;
    format.zero_steps += (step.largest == 0 || step.idle) && !step.hopeless;
    format.idle_steps += step.largest > 0 && step.idle && !step.hopeless;
  }
  const std::optional<SafeScales>& range = format.safest;
  format.steps_outside = format.steps - (range ? range->steps : 0);
  const size_t judged = format.steps - format.hopeless_steps;
  const bool enough = 2 * (judged - format.zero_steps) >= format.steps;
  if (!enough || !range) {
    format.verdict = enough ? Verdict::kNoScaleIsSafe : Verdict::kOverflows;
  } else if (judged - range->steps <= MostLost(judged)) {
    format.window = range;
    format.verdict = range->exponent == 0 ? Verdict::kAsIs : Verdict::kWithScale;
    format.scale = std::ldexp(1.0, range->exponent);
    format.low = BoundOf(format, true);
    format.high = BoundOf(format, false);
  } else if (format.empty_steps > MostLost(judged)) {
    format.verdict = Verdict::kNoScaleIsSafe;
  } else {
    format.verdict = Verdict::kWithScale;  // one that moves
  }
  JudgeTensors(format);
}

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

void JudgeFormat(bool gradients, FormatAdvice& format) {
  format.steps = format.windows.size();
  if (gradients) {
    JudgeGradients(format);
  } else {
    format.verdict = Verdict::kFitsInForward;
    format.windows.clear();  // without gradients all scales are safe, which says nothing
    format.safest.reset();
  }
  if (format.shadow) return AddShadow(*format.shadow, format);
  for (const ForwardVerdict* forward : {&format.forward, &format.values}) {
    if (forward->state == ForwardState::kOverflows) format.verdict = Verdict::kFailsInForward;
  }
  if (!format.forward.Vanishing().empty()) format.verdict = Verdict::kFailsInForward;
}

std::vector<Role> RolesIn(const FormatAdvice& format) {
  std::vector<Role> roles;
  for (const Role role : {Role::kGrad, Role::kActGrad}) {
    const bool present = std::ranges::any_of(format.tensors, [&](const TensorHarm& tensor) {
      return tensor.role == role && tensor.harm.steps > 0;
    });
    if (present) roles.push_back(role);
  }
  if (format.forward.steps > 0) roles.push_back(Role::kAct);
  if (format.values.steps > 0) roles.push_back(Role::kValue);
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

Advice Advise(Advice advice, const std::string& tensors) {
  const FormatAdvice& any = advice.formats.front();
  advice.tensors = tensors;
  advice.looked_at = RolesIn(any);
  advice.gradients = !any.tensors.empty();
  advice.parameters_only =
      advice.gradients && std::ranges::count(advice.looked_at, Role::kActGrad) == 0;
  advice.channels = std::ranges::any_of(
      any.tensors, [](const TensorHarm& tensor) { return tensor.channels.channels > 0; });
  for (FormatAdvice& format : advice.formats) JudgeFormat(advice.gradients, format);
  const auto rank = [](const FormatAdvice& format) {
    return std::tuple(format.verdict, !format.scale, format.steps_outside, format.mean_harm);
  };
  const auto best = std::ranges::min_element(advice.formats, {}, rank);
  advice.best = static_cast<size_t>(best - advice.formats.begin());
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
  const std::string module(WithoutCall(LayerOf(tensor)));
  const std::string_view stem = StemOf(OutputOf(tensor));
  if (IsOfOperation(stem) && matches(std::string(WithoutCall(stem)))) return true;
  for (size_t end = module.size(); end != 0 && end != module.npos;
       end = module.rfind('.', end - 1)) {
    if (matches(module.substr(0, end))) return true;
  }
  return false;
}

// What a plan of the recorder's means for the gradients of the rest.
Change ChangeBy(const Shadow::Plan& plan, const FormatAdvice& format, const StepSource& source,
                AdviceRequest request, ReplayOptions options) {
  Change change = {plan, {}, {}, {}};
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
  if (rest.window) {
    change.window = rest.window;
    change.scale = std::ldexp(1.0, rest.window->exponent);
  }
  change.then = change.scale == 1 ? Verdict::kAsIs : Verdict::kWithScale;
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
    const auto look = [&](TensorSpan tensors) {
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
