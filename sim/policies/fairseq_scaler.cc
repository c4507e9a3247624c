// SPDX-License-Identifier: Apache-2.0
// One step of fairseq's DynamicLossScaler or of metaseq's.
#include "sim/policies/fairseq_scaler.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "sim/base/quantity.h"

namespace dlsim::sim {

decltype(NamedValue::value) FieldValue(const PythonWindow& window) {
  if (window.type == PythonWindow::Type::kFloat || std::fabs(window.value) >= 0x1p63)
    return window.value;
  return static_cast<int64_t>(window.value);
}

bool SetFromNumber(double value, PythonWindow& window) {
  if (!std::isfinite(value)) return false;
  window = {value,
            value == std::trunc(value) ? PythonWindow::Type::kInt : PythonWindow::Type::kFloat};
  return true;
}

namespace {

using State = FairseqLossScaler::State;

// What Python raises midway leaves the state as it is by then. The trainer takes an OverflowError
// for the usual "skip this step".
Transition<State> Raise(State next, std::string_view type, std::string message) {
  return {.next = std::move(next),
          .skip = true,
          .event = ScalerEvent{.type = std::string(type),
                               .message = std::move(message),
                               .fatal = type != "OverflowError",
                               .details = {}}};
}

std::string FloorMessage(double min_loss_scale) {
  return "Minimum loss scale reached (" + PythonRepr(min_loss_scale) +
         "). Your loss is probably exploding. Try lowering the learning rate, using gradient "
         "clipping or increasing the batch size.";
}

// Lowers scale and window; returns the exception that stops it midway, if any.
std::optional<Transition<State>> Decrease(const FairseqLossScaler::Config& config, State& next) {
  if (config.scale_factor == 0) return Raise(next, "ZeroDivisionError", "float division by zero");
  next.loss_scale /= config.scale_factor;
  if (config.stack == FairseqStack::kMetaseq) {
    const double window = next.scale_window.value / config.scale_factor;
    if (!std::isfinite(window)) {
      return Raise(next, "OverflowError", "cannot convert float infinity to integer");
    }
    next.scale_window = {std::max(std::trunc(window), 1.0), PythonWindow::Type::kInt};
  }
  if (config.threshold && *config.threshold > next.loss_scale) next.loss_scale = *config.threshold;
  return std::nullopt;
}

}  // namespace

Transition<State> FairseqLossScaler::CheckOverflow(const Config& config, const State& state) {
  State next = state;
  const int64_t since_rescale = state.iter - state.last_rescale_iter;
  next.last_overflow_iter = state.iter;
  ++next.overflows_since_rescale;
  // Only after a FloatingPointError, which leaves `iter` behind, is no step in between.
  if (since_rescale == 0) return Raise(next, "ZeroDivisionError", "float division by zero");
  const double overflows = static_cast<double>(next.overflows_since_rescale);
  if (overflows / static_cast<double>(since_rescale) >= config.tolerance) {
    if (auto raised = Decrease(config, next)) return *std::move(raised);
    next.last_rescale_iter = state.iter;
    next.overflows_since_rescale = 0;
  }
  if (config.stack == FairseqStack::kFairseq && next.loss_scale <= config.min_loss_scale) {
    next.loss_scale = state.loss_scale;
    return Raise(next, "FloatingPointError", FloorMessage(config.min_loss_scale));
  }
  if (config.stack == FairseqStack::kMetaseq && next.loss_scale < config.min_loss_scale) {
    next.loss_scale = state.loss_scale;
  }
  ++next.iter;
  return {.next = next, .skip = true};
}

Transition<State> FairseqLossScaler::Update(const Config& config, const State& state) {
  State next = state;
  const PythonWindow window = state.scale_window;
  if (window.value == 0) {
    const bool integer = window.type == PythonWindow::Type::kInt;
    auto raised =
        Raise(next, "ZeroDivisionError", integer ? "integer modulo by zero" : "float modulo");
    raised.skip = false;  // the optimizer has stepped before
    return raised;
  }
  const double since_overflow = static_cast<double>(state.iter - state.last_overflow_iter);
  // Python's % has the sign of the divisor, std::fmod that of the dividend; both agree on 0.
  if (std::fmod(since_overflow, window.value) == 0) {
    next.loss_scale *= config.scale_factor;
    next.last_rescale_iter = state.iter;
    if (config.stack == FairseqStack::kMetaseq) {
      next.scale_window = {window.value * config.scale_factor, PythonWindow::Type::kFloat};
    }
  }
  ++next.iter;
  return {.next = next};
}

}  // namespace dlsim::sim
