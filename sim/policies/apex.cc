// SPDX-License-Identifier: Apache-2.0
// LossScaler of apex.amp, static or dynamic, with a Python float as its scale.
// Source: NVIDIA/apex, apex/amp/scaler.py.
#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "dlsim/error.h"
#include "sim/policies/policies.h"
#include "sim/policies/policy.h"
#include "sim/policies/python_number.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

enum class Dynamics { kOff, kOn };

struct AmpLossScaler {
  struct Config {
    Dynamics dynamics = Dynamics::kOn;
    double init_scale = 0;  // or the static loss_scale
    double scale_window = 0;
    double min_loss_scale = 0;  // 0 = none
    double max_loss_scale = 0;
  };
  struct State {
    double loss_scale = 0;
    int64_t unskipped = 0;
  };
  static State Start(const Config& config) {
    const bool capped = config.dynamics == Dynamics::kOn;
    return {capped ? std::min(config.max_loss_scale, config.init_scale) : config.init_scale, 0};
  }
  static double Scale(const State& state) { return state.loss_scale; }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    if (config.dynamics != Dynamics::kOn) return kAlwaysAlike;
    return AlikeUntil(WholeInterval(config.scale_window), state.unskipped);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"loss_scale", &State::loss_scale},
                      StateField{"unskipped", &State::unskipped}};
  }
};

Transition<AmpLossScaler::State> AmpLossScaler::Next(const Config& config, const State& state,
                                                     const ScalerInput& input) {
  // Unscaling divides by the scale before anything else happens.
  if (state.loss_scale == 0) {
    return {.next = state,
            .skip = true,
            .event = FatalEvent({"ZeroDivisionError", "float division by zero"})};
  }
  State next = state;
  const bool dynamic = config.dynamics == Dynamics::kOn;
  const bool skip = input.overflow && dynamic;
  if (skip) {
    next.loss_scale /= 2;
    if (config.min_loss_scale != 0) {
      next.loss_scale = std::max(config.min_loss_scale, next.loss_scale);
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

const std::vector<ParameterInfo>& ApexParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"loss_scale", {}, "dynamic", "dynamic, or a number: a scale that never changes"},
      {"init_scale", {"initial_loss_scale"}, "65536", "loss scale of the first step", kStart},
      {"scale_factor", {}, "2", "without effect: the scale changes by factors of 2"},
      {"scale_window",
       {"loss_scale_window"},
       "2000",
       "clean steps until the scale doubles",
       kInterval},
      {"min_loss_scale", {}, "none", "floor of a decrease; none and 0: no floor", kFloor},
      {"max_loss_scale", {}, "2^24", "ceiling of the first scale and of growth", kCeiling},
  };
  return kParameters;
}

std::vector<std::string> Notes(const Settings& settings, const AmpLossScaler::Config& config) {
  std::vector<std::string> notes;
  if (settings.Number("scale_factor") != 2) {
    notes.push_back("scale_factor is ignored: the scale changes by factors of 2");
  }
  if (config.min_loss_scale == 0) {
    if (settings.Text("min_loss_scale") != "none") notes.push_back("min_loss_scale 0 means none");
    notes.push_back(
        "no min_loss_scale: the scale can reach 0, and the step after that raises "
        "ZeroDivisionError");
  } else if (config.min_loss_scale > AmpLossScaler::Start(config).loss_scale) {
    notes.push_back("min_loss_scale above the first scale: the first overflow raises the scale");
  }
  if (config.init_scale > config.max_loss_scale) {
    notes.push_back("init_scale above max_loss_scale: the scale starts at max_loss_scale");
  }
  if (config.scale_window == 0) {
    notes.push_back(
        "scale_window 0: each decrease is doubled back at once, and nothing else grows");
  } else if (config.scale_window < 0 || config.scale_window != std::trunc(config.scale_window)) {
    notes.push_back("scale_window is not a positive integer: the scale never grows");
  }
  return notes;
}

ConfiguredScaler MakeApex(const ParameterMap& given, std::string_view) {
  const Settings settings{"apex", ApexParameters(), given};
  const bool dynamic = settings.Text("loss_scale") == "dynamic";
  const std::optional<double> minimum = OptionalNumber(settings, "min_loss_scale");
  NamedValue loss_scale = {"loss_scale", "dynamic"};
  if (!dynamic) loss_scale.value = ReadPositive(settings, "loss_scale").ToDouble();
  const double init_scale = ReadPositive(settings, "init_scale").ToDouble();
  const AmpLossScaler::Config config = {
      .dynamics = dynamic ? Dynamics::kOn : Dynamics::kOff,
      .init_scale = dynamic ? init_scale : std::get<double>(loss_scale.value),
      .scale_window = settings.Number("scale_window"),
      .min_loss_scale = minimum.value_or(0),
      .max_loss_scale = ReadPositive(settings, "max_loss_scale").ToDouble()};
  return {.scaler = LossScaler::Make<AmpLossScaler>(config),
          .parameters = {loss_scale,
                         {"init_scale", init_scale},
                         {"scale_factor", settings.Number("scale_factor")},
                         {"scale_window", config.scale_window},
                         OptionalValue("min_loss_scale", minimum),
                         {"max_loss_scale", config.max_loss_scale}},
          .notes = dynamic ? Notes(settings, config) : std::vector<std::string>{}};
}

}  // namespace

PolicyInfo ApexPolicy() {
  return {.name = "apex",
          .aliases = {"apex_amp"},
          .summary = "apex.amp; without min_loss_scale its scale can reach 0, which raises",
          .rules = {.finite_test = FiniteTest::kElementwise},
          .parameters = ApexParameters(),
          .make = MakeApex};
}

}  // namespace dlsim::sim
