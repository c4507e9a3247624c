// SPDX-License-Identifier: Apache-2.0
// DynamicGradScaler of Megatron-LM, in float32 throughout.
// Source: NVIDIA/Megatron-LM, megatron/core/optimizer/grad_scaler.py.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct MegatronScaler {
  struct Config {
    float initial_scale = 0;
    float min_scale = 0;
    float growth_factor = 0;
    float backoff_factor = 0;
    int64_t growth_interval = 0;
    int64_t hysteresis = 0;
  };
  struct State {
    float scale = 0;
    int64_t growth_tracker = 0;
    int64_t hysteresis_tracker = 0;
  };
  static State Start(const Config& config) { return {config.initial_scale, 0, config.hysteresis}; }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return AlikeUntil(config.growth_interval, state.growth_tracker);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"scale", &State::scale},
                      StateField{"growth_tracker", &State::growth_tracker},
                      StateField{"hysteresis_tracker", &State::hysteresis_tracker}};
  }
};

Transition<MegatronScaler::State> MegatronScaler::Next(const Config& config, const State& state,
                                                       const ScalerInput& input) {
  State next = state;
  if (input.overflow) {
    next.growth_tracker = 0;
    next.hysteresis_tracker -= 1;
    if (next.hysteresis_tracker <= 0) {
      next.scale = std::max(state.scale * config.backoff_factor, config.min_scale);
    }
    return {.next = next, .skip = true};
  }
  next.growth_tracker += 1;
  if (next.growth_tracker == config.growth_interval) {
    next.growth_tracker = 0;
    next.hysteresis_tracker = config.hysteresis;
    next.scale = state.scale * config.growth_factor;
  }
  return {.next = next};
}

const std::vector<ParameterInfo>& MegatronParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"initial_scale",
       {"initial_loss_scale", "init_scale"},
       "2^32",
       "scale of the first step",
       kStart},
      {"min_scale", {"min_loss_scale"}, "1", "floor of a decrease", kFloor},
      {"growth_factor", {}, "2", "multiplies the scale after growth_interval clean steps", kGrowth},
      {"backoff_factor", {}, "0.5", "multiplies the scale when hysteresis is used up", kBackoff},
      {"growth_interval",
       {"loss_scale_window"},
       "1000",
       "consecutive clean steps until the scale grows",
       kInterval},
      {"hysteresis", {}, "2", "overflows between two growths until the scale falls", kOverflows},
  };
  return kParameters;
}

// The parameters in the type of Python, in which the original checks them.
struct Arguments {
  double initial_scale;
  double min_scale;
  double growth_factor;
  double backoff_factor;
  int64_t growth_interval;
  int64_t hysteresis;
};

// The original's assertions have no message: a traceback shows their text instead.
void Check(const Arguments& arguments, const std::vector<NamedValue>& parameters) {
  const auto require = [&](bool condition, std::string_view text) {
    if (condition) return;
    throw PolicyRefusal{"AssertionError", std::string("assert ").append(text), parameters};
  };
  require(arguments.initial_scale > 0, "initial_scale > 0.0");
  require(arguments.min_scale > 0, "min_scale > 0.0");
  require(arguments.min_scale <= arguments.initial_scale, "min_scale <= initial_scale");
  require(arguments.growth_factor > 1, "growth_factor > 1.0");
  require(arguments.backoff_factor < 1, "backoff_factor < 1.0");
  require(arguments.backoff_factor > 0, "backoff_factor > 0.0");
  require(arguments.growth_interval > 0, "growth_interval > 0");
  require(arguments.hysteresis > 0, "hysteresis > 0");
}

std::vector<std::string> Notes(const MegatronScaler::Config& config) {
  std::vector<std::string> notes;
  if (config.hysteresis > 1) {
    notes.push_back(
        "hysteresis is restored only when the scale grows, not by a clean step: overflows far "
        "apart add up, and from overflow " +
        std::to_string(config.hysteresis) + " on each lowers the scale");
  }
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  if (std::isfinite(config.initial_scale) && config.initial_scale > 0 &&
      config.growth_interval != kNever) {
    const double infinity = std::numeric_limits<double>::infinity();
    NoteNoCeiling(CleanStepsToReach<MegatronScaler>(config, infinity), notes);
  }
  NoteDeadStart("initial_scale", config.initial_scale, notes);
  if (config.min_scale == 0) {
    notes.push_back("min_scale is 0 as float32: the scale can reach 0 and never returns");
  }
  return notes;
}

ConfiguredScaler MakeMegatron(const ParameterMap& given, std::string_view) {
  const Settings settings{"megatron", MegatronParameters(), given};
  const Arguments arguments = {
      settings.Number("initial_scale"),    settings.Number("min_scale"),
      settings.Number("growth_factor"),    settings.Number("backoff_factor"),
      settings.Integer("growth_interval"), settings.Integer("hysteresis")};
  const std::vector<NamedValue> parameters = {
      {"initial_scale", arguments.initial_scale},     {"min_scale", arguments.min_scale},
      {"growth_factor", arguments.growth_factor},     {"backoff_factor", arguments.backoff_factor},
      {"growth_interval", arguments.growth_interval}, {"hysteresis", arguments.hysteresis}};
  Check(arguments, parameters);
  const MegatronScaler::Config config = {
      .initial_scale = static_cast<float>(arguments.initial_scale),
      .min_scale = static_cast<float>(arguments.min_scale),
      .growth_factor = static_cast<float>(arguments.growth_factor),
      .backoff_factor = static_cast<float>(arguments.backoff_factor),
      .growth_interval = arguments.growth_interval,
      .hysteresis = arguments.hysteresis};
  return {.scaler = LossScaler::Make<MegatronScaler>(config),
          .parameters = parameters,
          .notes = Notes(config)};
}

}  // namespace

PolicyInfo MegatronPolicy() {
  return {.name = "megatron",
          .aliases = {},
          .summary = "Megatron-LM's DynamicGradScaler; no ceiling, can grow to infinity",
          .rules = {.finite_test = FiniteTest::kElementwise},
          .parameters = MegatronParameters(),
          .make = MakeMegatron};
}

}  // namespace dlsim::sim
