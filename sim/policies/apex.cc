// SPDX-License-Identifier: Apache-2.0
// LossScaler of apex.amp, static or dynamic, with a Python float as its scale.
// Source: NVIDIA/apex, apex/amp/scaler.py.
#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "sim/policies/policy.h"
#include "sim/policies/python_number.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct AmpLossScaler {
  struct Config {
    FixedOrDynamic loss_scale;
    double init_scale = 0;
    double scale_factor = 0;
    double scale_window = 0;
    std::optional<double> min_loss_scale;
    double max_loss_scale = 0;
  };
  struct State {
    double loss_scale = 0;
    int64_t unskipped = 0;
  };
  static State Start(const Config& config) {
    return {config.loss_scale.fixed.value_or(std::min(config.max_loss_scale, config.init_scale)),
            0};
  }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    // Unscaling divides by the scale before anything else happens.
    if (state.loss_scale == 0) {
      return {.next = state,
              .skip = true,
              .event = FatalEvent("ZeroDivisionError", "float division by zero")};
    }
    State next = state;
    const bool dynamic = config.loss_scale.dynamic();
    const bool skip = input.overflow && dynamic;
    if (skip) {
      next.loss_scale /= 2;
      if (config.min_loss_scale.value_or(0) != 0) {
        next.loss_scale = std::max(*config.min_loss_scale, next.loss_scale);
      }
      next.unskipped = 0;
    } else {
      next.unskipped += 1;
    }
    if (dynamic && static_cast<double>(next.unskipped) == config.scale_window) {
      next.loss_scale = std::min(config.max_loss_scale, next.loss_scale * 2);
      next.unskipped = 0;
    }
    return {.next = next, .skip = skip};
  }
  static constexpr std::tuple kFields = {StateField{"loss_scale", &State::loss_scale},
                                         StateField{"unskipped", &State::unskipped}};
};

void NoteDynamics(Setup<AmpLossScaler::Config>& setup) {
  const AmpLossScaler::Config& config = setup.config;
  setup.NoteIf(config.scale_factor != 2,
               "scale_factor is ignored: the scale changes by factors of 2");
  if (config.min_loss_scale.value_or(0) == 0) {
    setup.NoteIf(config.min_loss_scale.has_value(), "min_loss_scale 0 means none");
    setup.Note(
        "no min_loss_scale: the scale can reach 0, and the step after that raises "
        "ZeroDivisionError");
  } else {
    setup.NoteIf(*config.min_loss_scale > AmpLossScaler::Start(config).loss_scale,
                 "min_loss_scale above the first scale: the first overflow raises the scale");
  }
  setup.NoteIf(config.init_scale > config.max_loss_scale,
               "init_scale above max_loss_scale: the scale starts at max_loss_scale");
  const double window = config.scale_window;
  setup.NoteIf(window == 0,
               "scale_window 0: each decrease is doubled back at once, and nothing else grows");
  setup.NoteIf(window < 0 || window != std::trunc(window),
               "scale_window is not a positive integer: the scale never grows");
}

}  // namespace

PolicyInfo ApexPolicy() {
  using Config = AmpLossScaler::Config;
  return PolicyOf<AmpLossScaler>(
      {.name = "apex",
       .aliases = {"apex_amp"},
       .summary = "apex.amp; without min_loss_scale its scale can reach 0, which raises"},
      {Row(&Config::loss_scale, "loss_scale", {}, "dynamic",
           "dynamic, or a number: a scale that never changes"),
       Row(&Config::init_scale, "init_scale", {"initial_loss_scale"}, "65536",
           "loss scale of the first step", kStart),
       Row(&Config::scale_factor, "scale_factor", {}, "2",
           "without effect: the scale changes by factors of 2"),
       Row(&Config::scale_window, "scale_window", {"loss_scale_window"}, "2000",
           "clean steps until the scale doubles", kInterval),
       Row(&Config::min_loss_scale, "min_loss_scale", {}, "none",
           "floor of a decrease; none and 0: no floor", kFloor),
       Row(&Config::max_loss_scale, "max_loss_scale", {}, "2^24",
           "ceiling of the first scale and of growth", kCeiling)},
      [](Setup<Config>& setup) {
        setup.settings.RequirePositive("init_scale", setup.config.init_scale);
        setup.settings.RequirePositive("max_loss_scale", setup.config.max_loss_scale);
        if (setup.config.loss_scale.dynamic()) return NoteDynamics(setup);
        setup.settings.RequirePositive("loss_scale", *setup.config.loss_scale.fixed);
      });
}

}  // namespace dlsim::sim
