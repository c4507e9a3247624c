// SPDX-License-Identifier: Apache-2.0
// DynamicLossScaler of fairseq and that of metaseq, which grew out of it: Python floats.
// Sources: fairseq/optim/dynamic_loss_scaler.py and metaseq/optim/dynamic_loss_scaler.py, called
// from fp16_optimizer.py of each: check_overflow(norm), then update() after the optimizer's step.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "sim/base/quantity.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

enum class FairseqStack { kFairseq, kMetaseq };

// A Python number that is an int or a float; only its text and its errors tell them apart.
struct PythonWindow {
  enum class Type { kInt, kFloat };
  double value = 0;
  Type type = Type::kInt;
};

ShownValue FieldValue(const PythonWindow& window) {
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

struct FairseqLossScaler {
  struct Config {
    FairseqStack stack = FairseqStack::kFairseq;
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
    PythonWindow scale_window;
  };
  static State Start(const Config& config) {
    return {.loss_scale = config.init_scale,
            .scale_window = {static_cast<double>(config.scale_window), PythonWindow::Type::kInt}};
  }
  static Transition<State> CheckOverflow(const Config& config, const State& state);
  static Transition<State> Update(const Config& config, const State& state);
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    return input.overflow ? CheckOverflow(config, state) : Update(config, state);
  }
  static constexpr std::tuple kFields = {
      StateField{"loss_scale", &State::loss_scale},
      StateField{"iter", &State::iter},
      StateField{"last_overflow_iter", &State::last_overflow_iter},
      StateField{"last_rescale_iter", &State::last_rescale_iter},
      StateField{"overflows_since_rescale", &State::overflows_since_rescale},
      StateField{"scale_window", &State::scale_window}};
};

using FairseqState = FairseqLossScaler::State;

// What Python raises midway leaves the state as it is by then. The trainer takes an OverflowError
// for the usual "skip this step".
Transition<FairseqState> Raise(FairseqState next, std::string_view type, std::string message) {
  return {.next = std::move(next),
          .skip = true,
          .event = ScalerEvent{.type = std::string(type),
                               .message = std::move(message),
                               .fatal = type != "OverflowError",
                               .details = {}}};
}

// Lowers scale and window; returns the exception that stops it midway, if any.
std::optional<Transition<FairseqState>> Decrease(const FairseqLossScaler::Config& config,
                                                 FairseqState& next) {
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

Transition<FairseqState> FairseqLossScaler::CheckOverflow(const Config& config,
                                                          const State& state) {
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
    return Raise(
        next, "FloatingPointError",
        "Minimum loss scale reached (" + PythonRepr(config.min_loss_scale) +
            "). Your loss is probably exploding. Try lowering the learning rate, using gradient "
            "clipping or increasing the batch size.");
  }
  if (config.stack == FairseqStack::kMetaseq && next.loss_scale < config.min_loss_scale) {
    next.loss_scale = state.loss_scale;
  }
  ++next.iter;
  return {.next = next, .skip = true};
}

Transition<FairseqState> FairseqLossScaler::Update(const Config& config, const State& state) {
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

void NoteCommon(Setup<FairseqLossScaler::Config>& setup) {
  const FairseqLossScaler::Config& config = setup.config;
  // Elsewhere 0 means the default.
  setup.NoteIf(config.init_scale == 0 && config.threshold.value_or(0) <= 0,
               "init_scale 0 is taken as it is, not as the default: the scale stays 0");
  setup.NoteIf(config.min_loss_scale == 0,
               config.stack == FairseqStack::kFairseq
                   ? "min_loss_scale 0 is taken as it is, not as the default: no error before "
                     "the scale has underflowed to 0"
                   : "min_loss_scale 0 is taken as it is, not as the default: the scale can "
                     "reach 0 and never returns");
  NoteDivisor("scale_factor", config.scale_factor, setup.notes);
  if (config.scale_window == 0) {
    setup.Note("scale_window 0: the first clean step raises ZeroDivisionError");
  } else if (config.scale_window < 0) {
    setup.Note("scale_window below 0 acts as its absolute value");
  }
  if (config.tolerance > 1) {
    setup.Note("tolerance above 1: the scale falls only by overflows from before its last growth");
  } else if (config.tolerance == 1) {
    setup.Note(
        "tolerance 1 compares with >=: the scale still falls when every step since its last "
        "change overflowed");
  }
  setup.NoteIf(config.threshold && config.init_scale < *config.threshold,
               "init_scale below threshold: an overflow raises the scale to threshold");
}

void NoteFairseq(Setup<FairseqLossScaler::Config>& setup) {
  const FairseqLossScaler::Config& config = setup.config;
  const double infinity = std::numeric_limits<double>::infinity();
  NoteInfinity(CleanStepsToReach<FairseqLossScaler>(config, infinity), setup.notes);
  setup.NoteIf(config.threshold && *config.threshold <= config.min_loss_scale,
               "threshold at or below min_loss_scale is useless: FloatingPointError comes first");
  const auto overflows =
      StepsUntil<FairseqLossScaler>(config, {.overflow = true}, [](const auto& transition) {
        return transition.event && transition.event->type == "FloatingPointError";
      });
  if (overflows) {
    const std::string which = *overflows == 1
                                  ? "the first overflow raises"
                                  : std::to_string(*overflows) + " overflows in a row raise";
    setup.Note(which + " FloatingPointError; a threshold above min_loss_scale goes on instead");
  }
}

void NoteMetaseq(Setup<FairseqLossScaler::Config>& setup) {
  const FairseqLossScaler::Config& config = setup.config;
  setup.Note(
      "scale_window is not constant: growth multiplies it by scale_factor, an overflow divides "
      "it, down to 1");
  setup.NoteIf(config.threshold && *config.threshold < config.min_loss_scale,
               "threshold below min_loss_scale has no effect");
  const bool lifted = config.threshold && *config.threshold >= config.min_loss_scale;
  setup.NoteIf(config.init_scale < config.min_loss_scale && !lifted,
               "init_scale below min_loss_scale: an overflow leaves the scale as it is");
}

PolicyInfo PolicyOfFairseq(std::string_view name, FairseqStack stack, std::string_view summary) {
  using Config = FairseqLossScaler::Config;
  const bool fairseq = stack == FairseqStack::kFairseq;
  return PolicyOf<FairseqLossScaler>(
      {.name = name,
       .summary = summary,
       .rules = {.finite_test = FiniteTest::kScaledNorm, .clip_rule = ClipRule::kFairseq},
       .checkpoint = Kept::kScale},
      {Row(&Config::init_scale, "init_scale", {"initial_loss_scale", "fp16_init_scale"},
           fairseq ? "2^15" : "4",
           fairseq ? "loss scale of the first step; the command line's default is 128"
                   : "loss scale of the first step",
           kStart),
       Row(&Config::scale_factor, "scale_factor", {}, "2",
           "divides the scale on an overflow and multiplies it on growth", kFactor),
       Row(&Config::scale_window, "scale_window", {"fp16_scale_window"}, fairseq ? "2000" : "256",
           fairseq ? "clean steps in a row until the scale grows"
                   : "clean steps in a row until the scale grows; changes with the scale",
           kInterval),
       Row(&Config::tolerance, "tolerance", {"fp16_scale_tolerance"}, "0",
           "the scale falls from this fraction of overflows since its last change on", kTolerance),
       Row(&Config::threshold, "threshold", {"threshold_loss_scale"}, "none", "floor, or none",
           kFloor),
       Row(&Config::min_loss_scale, "min_loss_scale", {}, fairseq ? "1e-4" : "2^-5",
           fairseq ? "an overflow that arrives here raises FloatingPointError"
                   : "an overflow that would fall below leaves the scale as it is",
           kFloor)},
      [stack](Setup<Config>& setup) {
        setup.config.stack = stack;
        setup.settings.RequireCount("scale_window", setup.config.scale_window);
        NoteCommon(setup);
        (stack == FairseqStack::kFairseq ? NoteFairseq : NoteMetaseq)(setup);
      });
}

}  // namespace

PolicyInfo FairseqPolicy() {
  return PolicyOfFairseq(
      "fairseq", FairseqStack::kFairseq,
      "fairseq's DynamicLossScaler; stops with FloatingPointError at its minimum");
}

PolicyInfo MetaseqPolicy() {
  return PolicyOfFairseq("metaseq", FairseqStack::kMetaseq,
                         "metaseq's DynamicLossScaler; its window changes with the scale");
}

}  // namespace dlsim::sim
