// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "sim/advice/advice.h"
#include "sim/base/shared_rows.h"
#include "sim/scaled/scaled.h"

namespace dlsim::sim {

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
  row("name", of.name, "as recorded");
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

std::vector<FormatRecord> FormatsOf(const Advice& advice) {
  std::vector<FormatRecord> formats;
  for (const FormatAdvice& format : advice.formats) formats.push_back({format});
  for (const ScaledAdvice& format : advice.scaled) formats.push_back(RecordOf(format));
  return formats;
}

void AdviceRows(const Advice& of, std::string_view rounding, RowSink& row) {
  const bool scaled_only = of.formats.empty();
  row("formats", FormatsOf(of), "one object per format");
  row("best",
      !scaled_only                 ? of.formats[of.best].format
      : of.best < of.scaled.size() ? of.scaled[of.best].format
                                   : std::string(),
      "name of the format that ranks first");
  row("lines", of.lines,
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
