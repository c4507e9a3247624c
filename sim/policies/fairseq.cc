// SPDX-License-Identifier: Apache-2.0
// DynamicLossScaler of fairseq and of metaseq, which grew out of it: Python floats.
// Sources: fairseq/optim/dynamic_loss_scaler.py and metaseq/optim/dynamic_loss_scaler.py, called
// from fp16_optimizer.py of each: check_overflow(norm), then update() after the optimizer's step.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/policies/optional_settings.h"
#include "sim/policies/policies.h"
#include "sim/policies/projection.h"
#include "sim/policies/settings.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

enum class Stack { kFairseq, kMetaseq };

// A Python number that is an int or a float; only its text and its errors tell them apart.
struct Window {
  enum class Type { kInt, kFloat };
  double value = 0;
  Type type = Type::kInt;
};

decltype(NamedValue::value) FieldValue(const Window& window) {
  if (window.type == Window::Type::kFloat || std::fabs(window.value) >= 0x1p63) return window.value;
  return static_cast<int64_t>(window.value);
}

bool SetFromNumber(double value, Window& window) {
  if (!std::isfinite(value)) return false;
  window = {value, value == std::trunc(value) ? Window::Type::kInt : Window::Type::kFloat};
  return true;
}

struct DynamicLossScaler {
  struct Config {
    Stack stack = Stack::kFairseq;
    double init_scale = 0;
    double scale_factor = 2;
    int64_t scale_window = 0;
    double tolerance = 0;
    std::optional<double> threshold;
    double min_loss_scale = 0;
  };
  struct State {
    double loss_scale = 0;
    int64_t iter = 0;
    int64_t last_overflow_iter = -1;
    int64_t last_rescale_iter = -1;
    int64_t overflows_since_rescale = 0;
    Window scale_window;
  };
  static State Start(const Config& config) {
    return {.loss_scale = config.init_scale,
            .scale_window = {static_cast<double>(config.scale_window), Window::Type::kInt}};
  }
  static double Scale(const State& state) { return state.loss_scale; }
  static Transition<State> CheckOverflow(const Config& config, const State& state);
  static Transition<State> Update(const Config& config, const State& state);
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    return input.overflow ? CheckOverflow(config, state) : Update(config, state);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"loss_scale", &State::loss_scale},
                      StateField{"iter", &State::iter},
                      StateField{"last_overflow_iter", &State::last_overflow_iter},
                      StateField{"last_rescale_iter", &State::last_rescale_iter},
                      StateField{"overflows_since_rescale", &State::overflows_since_rescale},
                      StateField{"scale_window", &State::scale_window}};
  }
};

using State = DynamicLossScaler::State;

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
std::optional<Transition<State>> Decrease(const DynamicLossScaler::Config& config, State& next) {
  if (config.scale_factor == 0) return Raise(next, "ZeroDivisionError", "float division by zero");
  next.loss_scale /= config.scale_factor;
  if (config.stack == Stack::kMetaseq) {
    const double window = next.scale_window.value / config.scale_factor;
    if (!std::isfinite(window)) {
      return Raise(next, "OverflowError", "cannot convert float infinity to integer");
    }
    next.scale_window = {std::max(std::trunc(window), 1.0), Window::Type::kInt};
  }
  if (config.threshold && *config.threshold > next.loss_scale) next.loss_scale = *config.threshold;
  return std::nullopt;
}

Transition<State> DynamicLossScaler::CheckOverflow(const Config& config, const State& state) {
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
  if (config.stack == Stack::kFairseq && next.loss_scale <= config.min_loss_scale) {
    next.loss_scale = state.loss_scale;
    return Raise(next, "FloatingPointError", FloorMessage(config.min_loss_scale));
  }
  if (config.stack == Stack::kMetaseq && next.loss_scale < config.min_loss_scale) {
    next.loss_scale = state.loss_scale;
  }
  ++next.iter;
  return {.next = next, .skip = true};
}

Transition<State> DynamicLossScaler::Update(const Config& config, const State& state) {
  State next = state;
  const Window window = state.scale_window;
  if (window.value == 0) {
    const bool integer = window.type == Window::Type::kInt;
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
    if (config.stack == Stack::kMetaseq) {
      next.scale_window = {window.value * config.scale_factor, Window::Type::kFloat};
    }
  }
  ++next.iter;
  return {.next = next};
}

std::vector<ParameterInfo> Parameters(Stack stack) {
  const bool fairseq = stack == Stack::kFairseq;
  return {
      {"init_scale",
       {"initial_loss_scale", "fp16_init_scale"},
       fairseq ? "2^15" : "4",
       fairseq ? "loss scale of the first step; the command line's default is 128"
               : "loss scale of the first step",
       kStart},
      {"scale_factor",
       {},
       "2",
       "divides the scale on an overflow and multiplies it on growth",
       kFactor},
      {"scale_window",
       {"fp16_scale_window"},
       fairseq ? "2000" : "256",
       fairseq ? "clean steps in a row until the scale grows"
               : "clean steps in a row until the scale grows; changes with the scale",
       kInterval},
      {"tolerance",
       {"fp16_scale_tolerance"},
       "0",
       "the scale falls from this fraction of overflows since its last change on",
       kTolerance},
      {"threshold", {"threshold_loss_scale"}, "none", "floor, or none", kFloor},
      {"min_loss_scale",
       {},
       fairseq ? "1e-4" : "2^-5",
       fairseq ? "an overflow that arrives here raises FloatingPointError"
               : "an overflow that would fall below leaves the scale as it is",
       kFloor},
  };
}

const std::vector<ParameterInfo>& ParametersOf(Stack stack) {
  static const std::vector<ParameterInfo> kFairseq = Parameters(Stack::kFairseq);
  static const std::vector<ParameterInfo> kMetaseq = Parameters(Stack::kMetaseq);
  return stack == Stack::kFairseq ? kFairseq : kMetaseq;
}

// Elsewhere 0 means the default.
void NoteZeros(const DynamicLossScaler::Config& config, std::vector<std::string>& notes) {
  if (config.init_scale == 0 && config.threshold.value_or(0) <= 0) {
    notes.push_back("init_scale 0 is taken as it is, not as the default: the scale stays 0");
  }
  if (config.min_loss_scale == 0) {
    notes.push_back(config.stack == Stack::kFairseq
                        ? "min_loss_scale 0 is taken as it is, not as the default: no error before "
                          "the scale has underflowed to 0"
                        : "min_loss_scale 0 is taken as it is, not as the default: the scale can "
                          "reach 0 and never returns");
  }
}

void NoteCommon(const DynamicLossScaler::Config& config, std::vector<std::string>& notes) {
  NoteZeros(config, notes);
  NoteDivisor("scale_factor", config.scale_factor, notes);
  if (config.scale_window == 0) {
    notes.push_back("scale_window 0: the first clean step raises ZeroDivisionError");
  } else if (config.scale_window < 0) {
    notes.push_back("scale_window below 0 acts as its absolute value");
  }
  if (config.tolerance > 1) {
    notes.push_back(
        "tolerance above 1: the scale falls only by overflows from before its last growth");
  } else if (config.tolerance == 1) {
    notes.push_back(
        "tolerance 1 compares with >=: the scale still falls when every step since its last "
        "change overflowed");
  }
  if (config.threshold && config.init_scale < *config.threshold) {
    notes.push_back("init_scale below threshold: an overflow raises the scale to threshold");
  }
}

void NoteFairseq(const DynamicLossScaler::Config& config, std::vector<std::string>& notes) {
  const double infinity = std::numeric_limits<double>::infinity();
  NoteInfinity(CleanStepsToReach<DynamicLossScaler>(config, infinity), notes);
  if (config.threshold && *config.threshold <= config.min_loss_scale) {
    notes.push_back(
        "threshold at or below min_loss_scale is useless: FloatingPointError comes first");
  }
  const auto overflows =
      StepsUntil<DynamicLossScaler>(config, {.overflow = true}, [](const auto& transition) {
        return transition.event && transition.event->type == "FloatingPointError";
      });
  if (overflows) {
    const std::string which = *overflows == 1
                                  ? "the first overflow raises"
                                  : std::to_string(*overflows) + " overflows in a row raise";
    notes.push_back(which +
                    " FloatingPointError; a threshold above min_loss_scale goes on instead");
  }
}

void NoteMetaseq(const DynamicLossScaler::Config& config, std::vector<std::string>& notes) {
  notes.push_back(
      "scale_window is not constant: growth multiplies it by scale_factor, an overflow divides "
      "it, down to 1");
  if (config.threshold && *config.threshold < config.min_loss_scale) {
    notes.push_back("threshold below min_loss_scale has no effect");
  }
  const bool lifted = config.threshold && *config.threshold >= config.min_loss_scale;
  if (config.init_scale < config.min_loss_scale && !lifted) {
    notes.push_back("init_scale below min_loss_scale: an overflow leaves the scale as it is");
  }
}

// Beyond this binary64 does not hold every integer.
constexpr int64_t kMaxWindow = int64_t{1} << 53;

ConfiguredScaler MakeFairseq(std::string_view policy, Stack stack, const ParameterMap& given) {
  const Settings settings{policy, ParametersOf(stack), given};
  const DynamicLossScaler::Config config = {.stack = stack,
                                            .init_scale = settings.Number("init_scale"),
                                            .scale_factor = settings.Number("scale_factor"),
                                            .scale_window = settings.Integer("scale_window"),
                                            .tolerance = settings.Number("tolerance"),
                                            .threshold = OptionalNumber(settings, "threshold"),
                                            .min_loss_scale = settings.Number("min_loss_scale")};
  if (config.scale_window < -kMaxWindow || config.scale_window > kMaxWindow) {
    throw UsageError(std::string(policy) + ".scale_window", "out of range",
                     "at most 2^53 either way", std::to_string(config.scale_window));
  }
  std::vector<std::string> notes;
  NoteCommon(config, notes);
  (stack == Stack::kFairseq ? NoteFairseq : NoteMetaseq)(config, notes);
  return {.scaler = LossScaler::Make<DynamicLossScaler>(config),
          .parameters = {{"init_scale", config.init_scale},
                         {"scale_factor", config.scale_factor},
                         {"scale_window", config.scale_window},
                         {"tolerance", config.tolerance},
                         OptionalValue("threshold", config.threshold),
                         {"min_loss_scale", config.min_loss_scale}},
          .notes = std::move(notes)};
}

PolicyInfo Policy(std::string_view name, Stack stack, std::string_view summary) {
  return {.name = name,
          .aliases = {},
          .summary = summary,
          .rules = {.finite_test = FiniteTest::kScaledNorm, .clip_rule = ClipRule::kFairseq},
          .parameters = ParametersOf(stack),
          .make = [=](const ParameterMap& given,
                      std::string_view) { return MakeFairseq(name, stack, given); },
          .checkpoint = CheckpointContent::kScaleOnly};
}

}  // namespace

PolicyInfo FairseqPolicy() {
  return Policy("fairseq", Stack::kFairseq,
                "fairseq's DynamicLossScaler; stops with FloatingPointError at its minimum");
}

PolicyInfo MetaseqPolicy() {
  return Policy("metaseq", Stack::kMetaseq,
                "metaseq's DynamicLossScaler; its window changes with the scale");
}

}  // namespace dlsim::sim
