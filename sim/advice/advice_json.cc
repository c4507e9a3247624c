// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "sim/advice/advice_text.h"
#include "sim/scaled/scaled_text.h"

namespace dlsim::sim {
namespace {

Json JsonBound(const WindowBound& bound) {
  if (bound.tensor.empty()) return Json();
  return {{"step", bound.step},
          {"tensor", bound.tensor},
          {"by", bound.channels_decide ? "channels" : "tensor"}};
}

Json JsonOverflow(const ForwardTensor& tensor) {
  Json object = {{"tensor", tensor.name},
                 {"first_step", *tensor.overflow_step},
                 {"absmax", JsonNumber(tensor.absmax)}};
  if (tensor.constant) object["constant"] = true;
  return object;
}

Json JsonNonfinite(const ForwardTensor& tensor) {
  return {{"tensor", tensor.name},
          {"first_step", *tensor.nonfinite_step},
          {"inf", tensor.inf},
          {"nan", tensor.nan}};
}

Json JsonForward(const ForwardVerdict& forward) {
  const bool recorded = forward.headroom.has_value();
  Json object = {{"state", NameOf(forward.state)},
                 {"steps", forward.steps},
                 {"absmax", recorded ? JsonNumber(forward.absmax) : Json()},
                 {"headroom", recorded ? JsonNumber(*forward.headroom) : Json()},
                 {"first", Json()},
                 {"overflowing", Json::array()},
                 {"vanishing", Json::array()},
                 {"nonfinite", Json::array()},
                 {"kept_in_float32", forward.kept_in_float32}};
  for (const ForwardTensor* tensor : forward.Overflowing()) {
    if (object["first"].is_null()) {
      object["first"] = {{"step", *tensor->overflow_step},
                         {"tensor", tensor->name},
                         {"absmax", JsonNumber(tensor->overflow_absmax)}};
    }
    object["overflowing"].push_back(JsonOverflow(*tensor));
  }
  for (const ForwardTensor* tensor : forward.Vanishing()) {
    object["vanishing"].push_back({{"tensor", tensor->name},
                                   {"steps", tensor->steps_lost},
                                   {"energy_lost", JsonNumber(tensor->energy_lost)},
                                   {"worst_step", tensor->energy_lost_step}});
  }
  for (const ForwardTensor& tensor : forward.tensors) {
    if (tensor.nonfinite_step) object["nonfinite"].push_back(JsonNonfinite(tensor));
  }
  return object;
}

Json JsonChannels(const ChannelHarm& harm) {
  return harm.mean.steps == 0 ? Json() : JsonNumber(harm.mean.mean());
}

Json JsonWindow(const std::optional<SafeScales>& window) {
  return window ? Json{std::ldexp(1.0, window->low), std::ldexp(1.0, window->high)} : Json();
}

Json JsonOptional(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json JsonShadow(const std::optional<Shadow>& shadow) {
  if (!shadow) return Json();
  Json object = {{"fails", shadow->fails == ShadowFailure::kNone ? Json() : NameOf(shadow->fails)},
                 {"steps", shadow->steps},
                 {"bad", shadow->bad},
                 {"error", shadow->error.empty() ? Json() : Json(shadow->error)},
                 {"loss_difference", JsonOptional(shadow->loss)},
                 {"gradient_error", JsonOptional(shadow->gradients)},
                 {"scale", shadow->scale},
                 {"ceiling", Json()},
                 {"culprits", Json::array()},
                 {"modules", shadow->modules}};
  for (const Shadow::Ceiling& one : shadow->ceilings) {
    object["ceiling"] = {{"step", one.step}, {"scale", one.scale}, {"module", one.module}};
  }
  for (const Shadow::Culprit& culprit : shadow->culprits) {
    object["culprits"].push_back({{"module", culprit.module},
                                  {"operation", culprit.operation},
                                  {"operands", JsonOptional(culprit.operands)},
                                  {"result", JsonOptional(culprit.result)}});
  }
  return object;
}

Json JsonChange(const FormatAdvice& format) {
  if (!format.change) return Json();
  const Change& change = *format.change;
  return {{"keep_float32", change.keep_float32},
          {"sources", change.sources},
          {"loss_in_float32", change.loss_in_float32},
          {"because", change.because},
          {"then", NameOf(change.then)},
          {"scale", change.scale ? Json(*change.scale) : Json()},
          {"window", JsonWindow(change.window)},
          {"share", JsonOptional(change.share)},
          {"checked", true},
          {"steps", change.steps}};
}

Json JsonFormatAdvice(const FormatAdvice& format) {
  Json object = {{"format", format.format},
                 {"verdict", NameOf(format.verdict)},
                 {"forward", JsonForward(format.forward)},
                 {"values", JsonForward(format.values)},
                 {"shadow", JsonShadow(format.shadow)}};
  const auto power = [](int exponent) { return std::ldexp(1.0, exponent); };
  object["window"] = JsonWindow(format.window);
  object["window_low"] = JsonBound(format.low);
  object["window_high"] = JsonBound(format.high);
  object["scale"] = format.scale ? Json(*format.scale) : Json();
  object["steps"] = Json::array();
  for (const StepWindow& step : format.windows) {
    object["steps"].push_back(step.empty() ? Json{step.step, nullptr, nullptr}
                                           : Json{step.step, power(step.low), power(step.high)});
  }
  object["steps_outside_window"] = format.steps_outside;
  object["steps_with_empty_window"] = format.empty_steps;
  object["never_finite_steps"] = format.hopeless_steps;
  object["mean_harm"] = format.mean_harm;
  object["tensors_at_risk"] = Json::array();
  for (const TensorHarm& tensor : format.at_risk) {
    object["tensors_at_risk"].push_back({{"name", tensor.name},
                                         {"mean_harm", tensor.harm.mean()},
                                         {"worst_harm", tensor.harm.worst},
                                         {"mean_channel_harm", JsonChannels(tensor.channels)},
                                         {"first_step", *tensor.first_step},
                                         {"last_step", *tensor.last_step}});
  }
  object["noise_tensors"] = format.noise_tensors;
  object["change"] = JsonChange(format);
  object["instead"] = format.instead.empty() ? Json() : Json(format.instead);
  return object;
}

// Under the same keys; no loss scale is needed, and there is no window of any.
Json JsonFormatAdvice(const ScaledAdvice& scaled) {
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
  Json object = JsonFormatAdvice(format);
  object["scaled"] = JsonScaled(scaled);
  return object;
}

}  // namespace

Json JsonAdvice(const Advice& advice) {
  Json object = {{"formats", Json::array()}};
  for (const FormatAdvice& format : advice.formats) {
    object["formats"].push_back(JsonFormatAdvice(format));
  }
  for (const ScaledAdvice& format : advice.scaled) {
    object["formats"].push_back(JsonFormatAdvice(format));
  }
  object["best"] = advice.formats.empty() ? advice.scaled[advice.best].format
                                          : advice.formats[advice.best].format;
  object["lines"] = advice.lines;
  object["looked_at"] = Json::array();
  for (const Role role : advice.looked_at) object["looked_at"].push_back(NameOf(role));
  object["recipe"] = NameOf(advice.recipe);
  object["float32"] = advice.float32;
  if (const RefusedSteps& refused = advice.refused; refused.steps > 0) {
    object["refused"] = {{"steps", refused.steps},
                         {"of", advice.formats.front().steps + refused.steps},
                         {"first", refused.first}};
  }
  for (const auto& [type, steps] : {std::pair("float16", advice.computed_in.float16),
                                    std::pair("bfloat16", advice.computed_in.bfloat16)}) {
    if (steps > 0) object["computed_in"][type] = steps;
  }
  object["parameters_only"] = advice.parameters_only;
  object["channels"] = advice.channels;
  object["harm_threshold"] = advice.parameters_only ? kParametersOnlyHarmThreshold : kHarmThreshold;
  object["paths"] = Json::array();
  for (const PathInWindows& path : advice.paths) {
    Json item = {{"format", path.format},       {"policy", path.policy},
                 {"steps_inside", path.inside}, {"steps_below", path.below},
                 {"steps_above", path.above},   {"steps_with_empty_window", path.none_safe}};
    if (!path.config.empty()) item["config"] = path.config;
    object["paths"].push_back(std::move(item));
  }
  return object;
}

}  // namespace dlsim::sim
