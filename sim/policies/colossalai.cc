// SPDX-License-Identifier: Apache-2.0
// DynamicGradScaler of ColossalAI, Megatron's rule with hysteresis counted upwards.
// Source: hpcaitech/ColossalAI, colossalai/amp/naive_amp/grad_scaler/dynamic_grad_scaler.py.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>

#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct ColossalScaler {
  struct Config {
    float initial_scale = 0;
    float growth_factor = 0;
    float backoff_factor = 0;
    int64_t growth_interval = 0;
    float min_scale = 0;  // 0 = none, as for the original's truth test
    float max_scale = 0;
    int64_t hysteresis = 0;
  };
  struct State {
    float scale = 0;
    int64_t growth_step = 0;
    int64_t hysteresis_step = 0;
  };
  static State Start(const Config& config) { return {config.initial_scale, 0, 0}; }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return AlikeUntil(config.growth_interval, state.growth_step);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"scale", &State::scale},
                      StateField{"growth_step", &State::growth_step},
                      StateField{"hysteresis_step", &State::hysteresis_step}};
  }
};

Transition<ColossalScaler::State> ColossalScaler::Next(const Config& config, const State& state,
                                                       const ScalerInput& input) {
  State next = state;
  if (input.overflow) {
    next.hysteresis_step += 1;
    next.growth_step = 0;
    if (next.hysteresis_step >= config.hysteresis) {
      next.scale = state.scale * config.backoff_factor;
      if (config.min_scale != 0) next.scale = std::max(next.scale, config.min_scale);
    }
    return {.next = next, .skip = true};
  }
  next.growth_step += 1;
  if (next.growth_step == config.growth_interval) {
    next.growth_step = 0;
    next.hysteresis_step = 0;
    next.scale = state.scale * config.growth_factor;
    if (config.max_scale != 0) next.scale = std::min(next.scale, config.max_scale);
  }
  return {.next = next};
}

const std::vector<ParameterInfo>& ColossalaiParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"initial_scale",
       {"init_scale", "initial_loss_scale"},
       "2^16",
       "scale of the first step",
       kStart},
      {"growth_factor", {}, "2", "multiplies the scale after growth_interval clean steps", kGrowth},
      {"backoff_factor", {}, "0.5", "multiplies the scale when hysteresis is used up", kBackoff},
      {"growth_interval", {}, "1000", "consecutive clean steps until the scale grows", kInterval},
      {"min_scale",
       {"min_loss_scale"},
       "none",
       "floor of a decrease; none and 0: no floor",
       kFloor},
      {"max_scale",
       {"max_loss_scale"},
       "none",
       "ceiling of growth; none and 0: no ceiling",
       kCeiling},
      {"hysteresis", {}, "2", "overflows between two growths until the scale falls", kOverflows},
  };
  return kParameters;
}

// The parameters in the type of Python, in which the original checks most of them.
struct Arguments {
  double initial_scale;
  double growth_factor;
  double backoff_factor;
  int64_t growth_interval;
  std::optional<double> min_scale;
  std::optional<double> max_scale;
  int64_t hysteresis;
};

Arguments Read(const Settings& settings) {
  return {settings.Number("initial_scale"),      settings.Number("growth_factor"),
          settings.Number("backoff_factor"),     settings.Integer("growth_interval"),
          OptionalNumber(settings, "min_scale"), OptionalNumber(settings, "max_scale"),
          settings.Integer("hysteresis")};
}

std::vector<NamedValue> Describe(const Arguments& arguments) {
  NamedValue min_scale = {"min_scale", "none"};
  NamedValue max_scale = {"max_scale", "none"};
  if (arguments.min_scale) min_scale.value = *arguments.min_scale;
  if (arguments.max_scale) max_scale.value = *arguments.max_scale;
  return {{"initial_scale", arguments.initial_scale},
          {"growth_factor", arguments.growth_factor},
          {"backoff_factor", arguments.backoff_factor},
          {"growth_interval", arguments.growth_interval},
          min_scale,
          max_scale,
          {"hysteresis", arguments.hysteresis}};
}

void Check(const Arguments& arguments, const ColossalScaler::Config& config) {
  const auto require = [&](bool condition, const char* message) {
    if (!condition) throw PolicyRefusal{"AssertionError", message, Describe(arguments)};
  };
  require(arguments.initial_scale > 0, "assert initial_scale > 0");
  if (config.min_scale != 0) {
    require(config.min_scale > 0, "The minimum gradient scale cannot be zero or negative");
    require(config.min_scale <= config.initial_scale,
            "The minimum gradient scale cannot be greater than the current scale");
  }
  if (config.max_scale != 0) {
    require(config.max_scale > 0, "The maximum gradient scale cannot be zero or negative");
    require(config.max_scale >= config.initial_scale,
            "The maximum gradient scale cannot be smaller than the current scale");
  }
  require(arguments.growth_factor > 1, "The growth factor cannot be equal or smaller than 1");
  require(arguments.backoff_factor > 0 && arguments.backoff_factor < 1,
          "The backoff factor must be between 0 and 1");
  require(arguments.hysteresis >= 0, "The hysteresis cannot be negative");
}

std::vector<std::string> Notes(const Arguments& arguments, const ColossalScaler::Config& config) {
  std::vector<std::string> notes;
  if (config.hysteresis > 1) {
    notes.push_back(
        "hysteresis is restored only when the scale grows, not by a clean step: overflows far "
        "apart add up, and from overflow " +
        std::to_string(config.hysteresis) +
        " on each lowers the scale; checkpoints omit this count and growth_step");
  } else {
    if (config.hysteresis == 0) {
      notes.push_back("hysteresis 0 acts as 1: every overflow lowers the scale");
    }
    notes.push_back("checkpoints omit growth_step: a resumed run counts from 0");
  }
  if (arguments.min_scale && config.min_scale == 0) notes.push_back("min_scale 0 means none");
  if (arguments.max_scale && config.max_scale == 0) notes.push_back("max_scale 0 means none");
  if (config.min_scale == 0 && config.max_scale == 0) {
    notes.push_back(
        "no min_scale and no max_scale: the scale can reach 0 or grow to infinity and never "
        "returns");
  } else if (config.min_scale == 0) {
    notes.push_back("no min_scale: the scale can reach 0 and never returns");
  } else if (config.max_scale == 0) {
    notes.push_back("no max_scale: the scale can grow to infinity and never returns");
  }
  if (!std::isfinite(config.initial_scale)) {
    notes.push_back("initial_scale is infinite as float32 and can never come back");
  }
  if (config.growth_interval < 1) {
    notes.push_back("growth_interval below 1: the scale never grows");
  }
  return notes;
}

ConfiguredScaler MakeColossalai(const ParameterMap& given, std::string_view) {
  const Settings settings{"colossalai", ColossalaiParameters(), given};
  const Arguments arguments = Read(settings);
  // A tensor times a Python float multiplies by the float's float32 value.
  const ColossalScaler::Config config = {
      .initial_scale = static_cast<float>(arguments.initial_scale),
      .growth_factor = static_cast<float>(arguments.growth_factor),
      .backoff_factor = static_cast<float>(arguments.backoff_factor),
      .growth_interval = arguments.growth_interval,
      .min_scale = static_cast<float>(arguments.min_scale.value_or(0)),
      .max_scale = static_cast<float>(arguments.max_scale.value_or(0)),
      .hysteresis = arguments.hysteresis};
  Check(arguments, config);
  return {.scaler = LossScaler::Make<ColossalScaler>(config),
          .parameters = Describe(arguments),
          .notes = Notes(arguments, config)};
}

}  // namespace

PolicyInfo ColossalAiPolicy() {
  return {.name = "colossalai",
          .aliases = {},
          .summary = "ColossalAI's DynamicGradScaler; its checkpoint keeps only the scale",
          .rules = {.finite_test = FiniteTest::kElementwise},
          .parameters = ColossalaiParameters(),
          .make = MakeColossalai,
          .checkpoint = CheckpointContent::kScaleOnly};
}

}  // namespace dlsim::sim
