// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/advice.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/shared_rows.h"
#include "sim/replay/layer_name.h"
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
    if (tensor.noise()) format.noise_tensors.push_back(tensor.tensor->name);
    return tensor.noise();
  });
  HarmOverSteps all;
  for (const TensorHarm& tensor : format.tensors) {
    if (tensor.harm.steps > 0) all.Add(tensor.harm.mean());
    if (tensor.steps_at_risk > 0) format.at_risk.push_back(tensor);
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
      return tensor.tensor->role == role && tensor.harm.steps > 0;
    });
    if (present) roles.push_back(role);
  }
  if (format.forward.steps > 0) roles.push_back(Role::kAct);
  if (format.values.steps > 0) roles.push_back(Role::kValue);
  return roles;
}

void Judge(Advice& advice) {
  const FormatAdvice& any = advice.formats.front();
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
}

Advice AdviseOn(const StepSource& source, const AdviceRequest& request,
                const ReplayOptions& options, bool with_changes) {
  WindowFinder windows(source, request, options);
  ForEachStep(source, options.step, [&](size_t i, Step& step) {
    windows.Take(i, step);
    return true;
  });
  return windows.Conclude(with_changes);
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
  explicit KeptUnits(std::span<const std::string> names) : names_(names.begin(), names.end()) {
    for (const std::string& name : names) {
      if (name.find_first_of("*?[") != name.npos) globs_.push_back(name);
    }
  }

  // Whether a recorded tensor is of such a part.
  bool Has(std::string_view tensor) const {
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

 private:
  std::set<std::string, std::less<>> names_;
  std::vector<std::string> globs_;
};

// What the recorder's plan for a format means for the gradients of the rest.
Change ChangeBy(const FormatAdvice& format, const StepSource& source, AdviceRequest request,
                const ReplayOptions& options) {
  const Shadow::Plan& plan = *format.shadow->plan;
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
    const KeptUnits kept(plan.keep_float32);
    const StepSource without =
        Without(source, [&kept](const TensorInfo& tensor) { return kept.Has(tensor.name); });
    rest = AdviseOn(without, request, options, false).formats.front();
  }
  // The steps hold at the plan's scale, whatever is said of those at which float32 was recorded.
  if (rest.window) {
    change.window = rest.window;
    change.scale = std::ldexp(1.0, rest.window->exponent);
  }
  change.then = change.scale == 1 ? Verdict::kAsIs : Verdict::kWithScale;
  return change;
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

Advice AdviseOn(const StepSource& source, const AdviceRequest& request,
                const ReplayOptions& options) {
  return AdviseOn(source, request, options, true);
}

Advice WindowFinder::Conclude(bool with_changes) {
  Advice advice = TakeWindows();
  Judge(advice);
  const bool bf16_trains = std::ranges::any_of(advice.formats, [](const FormatAdvice& format) {
    return format.format == "bf16" && Trains(format);
  });
  for (FormatAdvice& format : advice.formats) {
    if (!with_changes || !Fails(format)) continue;
    if (advice.recipe == Recipe::kAutocast) format.instead = bf16_trains ? "use bf16" : "";
    if (format.shadow && format.shadow->plan) {
      format.change = ChangeBy(format, source_, request_, options_);
    }
  }
  return advice;
}

// As JSON.

inline auto ShownAs(const SafeScales& scales) {
  return std::pair(std::ldexp(1.0, scales.low), std::ldexp(1.0, scales.high));
}

inline auto ShownAs(const StepWindow& step) {
  const auto end = [&](int exponent) {
    return step.empty() ? std::nullopt : std::optional(std::ldexp(1.0, exponent));
  };
  return std::tuple(step.step, end(step.low), end(step.high));
}

inline bool IsNone(const WindowBound& bound) { return bound.tensor.empty(); }

inline void Rows(const WindowBound& of, RowSink& row) {
  row("step", of.step, "that ends the window");
  row("tensor", of.tensor, "that does at that step");
  row("by", of.channels_decide ? "channels" : "tensor",
      "the `tensor` as a whole or its `channels`");
}

inline void Rows(const ForwardVerdict& of, RowSink& row) {
  row("state", of.state,
      "`fits`, `overflows` or `not recorded`; what underflows fits. Steps that were run in the "
      "format decide, if there are any");
  row("steps", of.steps, "steps with such tensors");
  row("absmax", of.headroom ? std::optional(of.absmax) : std::nullopt,
      "largest finite magnitude that counts; null if not recorded");
  row("headroom", of.headroom,
      "binades from `absmax` to the largest finite value: negative if it overflows; `inf` if "
      "all is 0, null if not recorded");
  const auto overflowing = of.Overflowing();
  row.ObjectIf(overflowing.empty() ? nullptr : overflowing.front(), "first",
               "the first overflow in recorded order; null without one",
               [](const ForwardTensor& tensor, RowSink& first) {
                 first("step", tensor.overflow_step, "of the first overflow");
                 first("tensor", tensor.name, "as recorded");
                 first("absmax", tensor.overflow_absmax, "its largest magnitude at that step");
               });
  row.List("overflowing", "all tensors that overflow, in that order", overflowing,
           [](const ForwardTensor& tensor, RowSink& item) {
             item("tensor", tensor.name, "as recorded");
             item("first_step", tensor.overflow_step, "at which it overflows");
             item("absmax", tensor.absmax, "its largest finite magnitude over all steps");
             item("constant", tensor.constant ? &tensor.constant : nullptr,
                  "true if it is a constant", kLeftOutIfEmpty);
           });
  row.List("vanishing", "[outputs that vanish](verdict.md#forward-pass)", of.Vanishing(),
           [](const ForwardTensor& tensor, RowSink& item) {
             item("tensor", tensor.name, "as recorded");
             item("steps", tensor.steps_lost, "at which it vanishes");
             item("energy_lost", tensor.energy_lost, "the largest share of a step");
             item("worst_step", tensor.energy_lost_step, "that step");
           });
  std::vector<const ForwardTensor*> nonfinite;
  for (const ForwardTensor& tensor : of.tensors) {
    if (tensor.nonfinite_step) nonfinite.push_back(&tensor);
  }
  row.List("nonfinite", "tensors recorded with values that are not finite, which do not count",
           nonfinite, [](const ForwardTensor& tensor, RowSink& item) {
             item("tensor", tensor.name, "as recorded");
             item("first_step", tensor.nonfinite_step, "at which a value is not finite");
             item("inf", tensor.inf, "infinite values, over all steps");
             item("nan", tensor.nan, "values that are NaN, over all steps");
           });
  row("kept_in_float32", of.kept_in_float32,
      "names of recorded tensors that the recipe does not hold in 16 bits");
}

inline void Rows(const Shadow::Ceiling& of, RowSink& row) {
  row("step", of.step, "with gradients that were not recorded");
  row("scale", of.scale, "loss scale above which they overflow");
  row("module", of.module, "whose gradients overflow first");
}

inline void Rows(const Shadow::Culprit& of, RowSink& row) {
  row("module", of.module, "in which it is");
  row("operation", of.operation, "that breaks");
  row("operands", of.operands, "largest magnitude of its operands in float32");
  row("result", of.result, "that of its result");
}

inline void Rows(const Shadow& of, RowSink& row) {
  row("fails", of.fails, "`not finite`, `loss`, `gradients`, or null", kNullIfEmpty);
  row("steps", of.steps, "that were run and are finite in float32");
  row("bad", of.bad, "of these, not finite or raising in the format");
  row("error", of.error, "what the first bad step has raised, or null", kNullIfEmpty);
  row("loss_difference", of.loss,
      "how far the mean loss is from float32's; null if the loss was not run");
  row("gradient_error", of.gradients, "the same of mean gradients of rows, in the mean");
  row("scale", of.scale, "of the loss, at the last step");
  row("ceiling", of.ceilings.empty() ? nullptr : &of.ceilings.back(),
      "if gradients that were not recorded end the safe scales");
  row("culprits", of.culprits, "where the first bad step breaks, in order");
  row("modules", of.modules, "with wrong gradients");
}

inline void Rows(const Change& of, RowSink& row) {
  row("keep_float32", of.keep_float32, "modules, and operations of a module's own forward");
  row("sources", of.sources, "for each the line of the model that calls it, or empty");
  row("loss_in_float32", of.loss_in_float32,
      "whether what runs outside of the model must be in float32, too");
  row("because", of.because, "tensors that 16 bits cannot hold");
  row("then", of.then, "the verdict on the rest");
  row("scale", of.scale, "to use then");
  row("window", of.window, "`[low, high]` then");
  row("share", of.share,
      "of the multiplications of the forward pass that stay in float32, or null");
  row("checked", true, "true: steps were run so");
  row("steps", of.steps, "that held with it");
}

inline void Rows(const TensorHarm& of, RowSink& row) {
  row("name", of.tensor->name, "as recorded");
  row.Group(of.harm);
  row("mean_channel_harm", MeanChannelHarm(of.channels),
      "the same of its channels, over channels and steps; null if they are not known");
  row("first_step", of.first_step, "at which it loses too much");
  row("last_step", of.last_step, "the last such step");
}

inline void Rows(const FormatAdvice& of, RowSink& row) {
  row("format", of.format, "canonical name");
  row("verdict", of.verdict,
      "`as is`, `with a scale`, `no scale serves`, `overflows`, or `fails in forward`, which "
      "wins over the others; without gradients `fits in forward` or `fails in forward`");
  row("forward", of.forward, "whether the outputs of the forward pass fit the format at scale 1");
  row("values", of.values, "whether parameters do");
  row("shadow", of.shadow,
      "what [steps that were run in the format](verdict.md#forward-pass) have shown, null if "
      "none were");
  row("window", of.window,
      "`[low, high]`, the powers of two that are safe at all but isolated steps; null if there "
      "are none");
  row("window_low", of.low, "what ends it below; null if nothing does");
  row("window_high", of.high, "what ends it above");
  row("scale", of.scale, "the power of two to use at all steps; null if none is safe");
  row("steps", of.windows,
      "per step `[step, low, high]`, its own window; low and high are null where it is empty");
  row("steps_outside_window", of.steps_outside,
      "steps at which `scale` is not safe (without one: the scale that is safe at most steps)");
  row("steps_with_empty_window", of.empty_steps, "steps at which no scale is safe");
  row("never_finite_steps", of.hopeless_steps, "steps that were not finite when recorded");
  row("mean_harm", of.mean_harm, "over all tensors and steps, at `scale`");
  row("tensors_at_risk", of.at_risk, "the worst first");
  row("noise_tensors", of.noise_tensors,
      "names of tensors that hold only rounding noise, or with SGD hardly move a parameter; "
      "not counted");
  row("change", of.change,
      "what to keep in float32, see [rules of the verdict](verdict.md#what-to-change), or "
      "null");
  row("instead", of.instead, "what else may help where the format fails, in words, or null",
      kNullIfEmpty);
}

inline void Rows(const PathInWindows& of, RowSink& row) {
  row("format", of.format, "of the run");
  row("policy", of.policy, "of the run");
  row("steps_inside", of.inside, "steps at which its scale was safe");
  row("steps_below", of.below, "at which it was too low");
  row("steps_above", of.above, "at which it was too high");
  row("steps_with_empty_window", of.none_safe, "at which no scale was safe");
  row("config", of.config, "with several --config: the name of its file", kLeftOutIfEmpty);
}

constexpr bool IsNone(const ComputedIn16Bits& of) { return of.float16 + of.bfloat16 == 0; }

inline void Rows(const ComputedIn16Bits& of, RowSink& row) {
  const auto if_any = [](const size_t& steps) { return steps > 0 ? &steps : nullptr; };
  row("float16", if_any(of.float16), "steps that were computed in it", kLeftOutIfEmpty);
  row("bfloat16", if_any(of.bfloat16), "the same", kLeftOutIfEmpty);
}

namespace {

struct FormatRecord {
  FormatAdvice advice;
  TellRows scaled = {};
};

inline void Rows(const FormatRecord& of, RowSink& row) {
  row.Group(of.advice);
  row("scaled", of.scaled, "only of a format with scales of its own", kLeftOutIfEmpty);
}

// Under the same keys; no loss scale is needed, and there is no window of any.
FormatRecord RecordOf(const ScaledAdvice& scaled) {
  FormatAdvice format;
  format.format = scaled.format;
  format.verdict = VerdictOn(scaled);
  for (const auto& [role, verdict] :
       {std::pair(Role::kAct, &format.forward), std::pair(Role::kValue, &format.values)}) {
    if (!scaled.looked_at.contains(role)) continue;
    verdict->state = ForwardState::kFits;
    verdict->steps = scaled.steps.size();
  }
  format.mean_harm = BackwardHarm(scaled).mean();
  format.steps_outside = scaled.ForwardFailures() + scaled.BackwardFailures();
  return {std::move(format), RowsOf(scaled)};
}

void AdviceRows(const Advice& of, std::string_view rounding, RowSink& row) {
  const bool scaled_only = of.formats.empty();
  std::vector<FormatRecord> formats;
  for (const FormatAdvice& format : of.formats) formats.push_back({format});
  for (const ScaledAdvice& format : of.scaled) formats.push_back(RecordOf(format));
  row("formats", formats, "one object per format");
  row("best",
      !scaled_only                 ? of.formats[of.best].format
      : of.best < of.scaled.size() ? of.scaled[of.best].format
                                   : std::string(),
      "name of the format that ranks first");
  row("lines", AdviceLines(of),
      "the answer in words: a string for each format, then what it is based on, and the tensors at "
      "risk");
  row("looked_at", of.looked_at,
      "roles of the tensors that the answer is based on: `grad`, `act_grad`, `act`, `value`");
  row("recipe", of.recipe, "`autocast` or `half`: which forward tensors count");
  row("float32", of.float32, "parts that were taken to be in float32");
  row.ObjectIf(
      of.refused.steps > 0 ? &of.refused : nullptr, "refused", "if the recorder refused steps",
      [&](const RefusedSteps& steps, RowSink& refused) {
        const uint64_t taken = of.formats.empty() ? 0 : of.formats.front().steps;
        refused("steps", steps.steps, "that the recorder refused");
        refused("of", taken + steps.steps, "of how many");
        refused("first", steps.first, "what it said of the first");
      },
      kLeftOutIfEmpty);
  row("computed_in", of.computed_in, "if the recorded run computed in 16 bits: at how many steps",
      kLeftOutIfEmpty);
  row("parameters_only", of.parameters_only, "whether no gradients of activations were recorded");
  row("channels", of.channels, "whether channels of gradients were judged");
  row("harm_threshold", of.parameters_only ? kParametersOnlyHarmThreshold : kHarmThreshold,
      "harm below which a scale is safe at a step");
  row("paths", of.paths, "of a replay, one object per run");
  row("rounding", rounding, "of a sweep", kLeftOutIfEmpty);
}

}  // namespace

TellRows RowsOf(const Advice& advice, std::string_view rounding) {
  return [&advice, rounding](RowSink& row) { AdviceRows(advice, rounding, row); };
}

void AddAdviceKeys(std::vector<KeyTable>& tables) { AddKeys("verdict", RowsOf(Advice()), tables); }

}  // namespace dlsim::sim
