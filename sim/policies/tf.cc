// SPDX-License-Identifier: Apache-2.0
// DynamicLossScale of TensorFlow 2 and LossScaleOptimizer of Keras 2, one rule under two sets of
// names. Sources: tensorflow/python/training/experimental/loss_scale.py and
// keras/mixed_precision/loss_scale_optimizer.py of Keras 2.15.
#include <cmath>
#include <tuple>

#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct TfNames {
  static constexpr const char* kCounter = "num_good_steps";
};
struct Keras2Names {
  static constexpr const char* kCounter = "counter";
};

struct DynamicConfig {
  float initial_loss_scale = 0;
  int64_t period = 0;
  float multiplier = 0;
};

template <class Names>
struct DynamicLossScale {
  using Config = DynamicConfig;
  struct State {
    float scale = 0;
    int64_t good_steps = 0;
  };
  static State Start(const Config& config) { return {config.initial_loss_scale, 0}; }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    if (input.overflow) {
      return {.next = {AtLeastOne(state.scale / config.multiplier), 0}, .skip = true};
    }
    if (state.good_steps + 1 < config.period) return {.next = {state.scale, state.good_steps + 1}};
    const float grown = state.scale * config.multiplier;
    return {.next = {std::isfinite(grown) ? grown : state.scale, 0}};
  }
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return AlikeUntil(config.period, state.good_steps);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"current_loss_scale", &State::scale},
                      StateField{Names::kCounter, &State::good_steps}};
  }
};

const std::vector<ParameterInfo>& TfParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"initial_loss_scale", {"init_scale"}, "2^15", "loss scale of the first step", kStart},
      {"increment_period",
       {"growth_steps"},
       "2000",
       "consecutive clean steps until it grows",
       kInterval},
      {"multiplier",
       {},
       "2",
       "multiplies the scale on growth and divides it on an overflow",
       kFactor},
  };
  return kParameters;
}

const std::vector<ParameterInfo>& Keras2Parameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"initial_loss_scale",
       {"initial_scale", "init_scale"},
       "2^15",
       "scale of the first step",
       kStart},
      {"growth_steps",
       {"dynamic_growth_steps", "increment_period"},
       "2000",
       "consecutive clean steps until it grows",
       kInterval},
      {"multiplier",
       {},
       "2",
       "multiplies the scale on growth and divides it on an overflow",
       kFactor},
      {"dynamic", {}, "true", "false: the scale never changes and no step is skipped"},
  };
  return kParameters;
}

DynamicConfig ReadConfig(const Settings& settings, std::string_view period_name) {
  return {.initial_loss_scale = static_cast<float>(settings.Number("initial_loss_scale")),
          .period = settings.Integer(period_name),
          .multiplier = static_cast<float>(settings.Number("multiplier"))};
}

std::vector<NamedValue> Describe(const Settings& settings, std::string_view period_name) {
  return {{"initial_loss_scale", settings.Number("initial_loss_scale")},
          {std::string(period_name), settings.Integer(period_name)},
          {"multiplier", settings.Number("multiplier")}};
}

std::vector<std::string> Notes(const DynamicConfig& config, std::string_view period_name) {
  std::vector<std::string> notes;
  if (!std::isfinite(config.initial_loss_scale)) {
    notes.push_back("initial_loss_scale is infinite as float32 and can never come back");
  } else {
    NoteFloorOfOne("initial_loss_scale", config.initial_loss_scale, notes);
  }
  if (config.period < 1) {
    notes.push_back(std::string(period_name).append(" below 1: the scale grows on every step"));
  }
  if (config.multiplier <= 1) {
    notes.push_back("multiplier of 1 or less: overflows do not lower the scale");
  }
  return notes;
}

ConfiguredScaler MakeTf(const ParameterMap& given, std::string_view) {
  const Settings settings{"tf", TfParameters(), given};
  const DynamicConfig config = ReadConfig(settings, "increment_period");
  return {.scaler = LossScaler::Make<DynamicLossScale<TfNames>>(config),
          .parameters = Describe(settings, "increment_period"),
          .notes = Notes(config, "increment_period")};
}

// A fixed scale, with the refusals of the original's constructor.
ConfiguredScaler MakeFixed(const Settings& settings, const std::vector<NamedValue>& parameters) {
  if (!settings.Given("initial_loss_scale")) {
    throw PolicyRefusal{"ValueError", "\"initial_scale\" must be specified if \"dynamic\" is False",
                        parameters};
  }
  if (settings.Given("growth_steps")) {
    throw PolicyRefusal{"ValueError",
                        "\"dynamic_growth_steps\" must be None if \"dynamic\" is False, but got: " +
                            std::to_string(settings.Integer("growth_steps")),
                        parameters};
  }
  return {.scaler = LossScaler::Make<StaticScale>({settings.StaticScale("initial_loss_scale")}),
          .parameters = parameters,
          .notes = {}};
}

ConfiguredScaler MakeKeras2(const ParameterMap& given, std::string_view) {
  const Settings settings{"keras2", Keras2Parameters(), given};
  const DynamicConfig config = ReadConfig(settings, "growth_steps");
  std::vector<NamedValue> parameters = Describe(settings, "growth_steps");
  const bool dynamic = settings.Bool("dynamic");
  parameters.push_back({"dynamic", dynamic});
  if (!dynamic) return MakeFixed(settings, parameters);
  return {.scaler = LossScaler::Make<DynamicLossScale<Keras2Names>>(config),
          .parameters = parameters,
          .notes = Notes(config, "growth_steps")};
}

}  // namespace

PolicyInfo TfPolicy() {
  return {.name = "tf",
          .aliases = {"tf_dynamic_loss_scale", "tensorflow"},
          .summary = "DynamicLossScale of TensorFlow 2; its floor is 1",
          .rules = {.finite_test = FiniteTest::kUnscaledElementwise,
                    .clip_rule = ClipRule::kTensorFlow},
          .parameters = TfParameters(),
          .make = MakeTf};
}

PolicyInfo Keras2Policy() {
  return {.name = "keras2",
          .aliases = {"keras2_loss_scale_optimizer"},
          .summary = "LossScaleOptimizer of Keras 2; the rule of tf",
          .rules = {.finite_test = FiniteTest::kUnscaledElementwise,
                    .clip_rule = ClipRule::kTensorFlow},
          .parameters = Keras2Parameters(),
          .make = MakeKeras2};
}

}  // namespace dlsim::sim
