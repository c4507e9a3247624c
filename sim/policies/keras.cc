// SPDX-License-Identifier: Apache-2.0
// LossScaleOptimizer of Keras 3, which has neither floor nor ceiling.
// Source: keras/src/optimizers/loss_scale_optimizer.py.
#include <tuple>

#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct LossScaleOptimizer {
  struct Config {
    float initial_scale = 0;
    int64_t dynamic_growth_steps = 0;
  };
  struct State {
    float scale = 0;
    int64_t step_counter = 0;
  };
  static State Start(const Config& config) { return {config.initial_scale, 0}; }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    if (input.overflow) return {.next = {state.scale / 2, 0}, .skip = true};
    // Equality: a counter restored beyond the number of steps never meets it again.
    const bool grow = state.step_counter + 1 == config.dynamic_growth_steps;
    if (grow) return {.next = {state.scale * 2, 0}};
    return {.next = {state.scale, state.step_counter + 1}};
  }
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return AlikeUntil(config.dynamic_growth_steps, state.step_counter);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"dynamic_scale", &State::scale},
                      StateField{"step_counter", &State::step_counter}};
  }
};

const std::vector<ParameterInfo>& KerasParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"initial_scale",
       {"initial_loss_scale", "init_scale"},
       "2^15",
       "loss scale of the first step",
       kStart},
      {"dynamic_growth_steps",
       {"growth_steps"},
       "2000",
       "consecutive clean steps until the scale doubles",
       kInterval},
      {"dynamic", {}, "true", "false is refused"},
  };
  return kParameters;
}

std::vector<std::string> Notes(const LossScaleOptimizer::Config& config) {
  std::vector<std::string> notes;
  if (config.dynamic_growth_steps < 1) {
    notes.push_back("dynamic_growth_steps below 1: the scale never grows");
    notes.push_back("no floor: the scale can reach 0");
  } else {
    notes.push_back(
        "no floor and no ceiling: the scale can reach 0 or infinity and never comes back");
  }
  NoteDeadStart("initial_scale", config.initial_scale, notes);
  return notes;
}

ConfiguredScaler MakeKeras(const ParameterMap& given, std::string_view) {
  const Settings settings{"keras", KerasParameters(), given};
  const LossScaleOptimizer::Config config = {
      .initial_scale = static_cast<float>(settings.Number("initial_scale")),
      .dynamic_growth_steps = settings.Integer("dynamic_growth_steps")};
  const bool dynamic = settings.Bool("dynamic");
  const std::vector<NamedValue> parameters = {{"initial_scale", settings.Number("initial_scale")},
                                              {"dynamic_growth_steps", config.dynamic_growth_steps},
                                              {"dynamic", dynamic}};
  if (!dynamic) {
    throw PolicyRefusal{"ValueError",
                        "LossScaleOptimizer no longer supports `dynamic=False`. Instead, simply "
                        "set `loss_scale_factor` directly on the `inner_optimizer`.",
                        parameters};
  }
  return {.scaler = LossScaler::Make<LossScaleOptimizer>(config),
          .parameters = parameters,
          .notes = Notes(config)};
}

}  // namespace

PolicyInfo KerasPolicy() {
  return {.name = "keras",
          .aliases = {"keras3", "keras3_loss_scale_optimizer"},
          .summary = "LossScaleOptimizer of Keras 3; no floor, no ceiling",
          .rules = {.finite_test = FiniteTest::kElementwise, .clip_rule = ClipRule::kTensorFlow},
          .parameters = KerasParameters(),
          .make = MakeKeras};
}

}  // namespace dlsim::sim
