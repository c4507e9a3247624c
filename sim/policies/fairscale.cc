// SPDX-License-Identifier: Apache-2.0
// LayerwiseGradientScaler of fairscale: the rule of one scaled layer, in Python floats.
// Source: facebookresearch/fairscale, fairscale/optim/layerwise_gradient_scaler.py.
#include <limits>
#include <tuple>

#include "sim/policies/grad_scaler.h"
#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct LayerScaler {
  struct Config {
    double init_scale = 0;
    double growth_factor = 2;
    double backoff_factor = 0.5;
    int64_t growth_interval = 0;
    double min_scale = 0;
    double max_scale = 0;
  };
  struct State {
    double scaling_factor = 0;
    int64_t growth_tracker = 0;
  };
  // Not clamped: the limits act from the first change on.
  static State Start(const Config& config) { return {config.init_scale, 0}; }
  static double Scale(const State& state) { return state.scaling_factor; }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return AlikeUntil(config.growth_interval, state.growth_tracker);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"scaling_factor", &State::scaling_factor},
                      StateField{"growth_tracker", &State::growth_tracker}};
  }
};

// Python's max(min_scale, min(scale, max_scale)), which keeps the first of what does not compare.
double Clamp(const LayerScaler::Config& config, double scale) {
  const double at_most = config.max_scale < scale ? config.max_scale : scale;
  return at_most > config.min_scale ? at_most : config.min_scale;
}

Transition<LayerScaler::State> LayerScaler::Next(const Config& config, const State& state,
                                                 const ScalerInput& input) {
  if (input.overflow) {
    return {.next = {Clamp(config, config.backoff_factor * state.scaling_factor), 0}, .skip = true};
  }
  const int64_t clean_steps = state.growth_tracker + 1;
  if (clean_steps != config.growth_interval) return {.next = {state.scaling_factor, clean_steps}};
  return {.next = {Clamp(config, config.growth_factor * state.scaling_factor), 0}};
}

const std::vector<ParameterInfo>& FairscaleParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"init_scale",
       {"initial_loss_scale"},
       "2^10",
       "loss scale of the first step, the same for each layer",
       kStart},
      {"growth_factor", {}, "2", "multiplies the scale after growth_interval clean steps", kGrowth},
      {"backoff_factor", {}, "0.5", "multiplies the scale on an overflow in the layer", kBackoff},
      {"growth_interval",
       {},
       "10000",
       "consecutive clean steps of the layer until it grows",
       kInterval},
      {"min_scale", {}, "2^-126", "floor", kFloor},
      {"max_scale", {}, "0x1.fffffep+127", "ceiling", kCeiling},
  };
  return kParameters;
}

std::vector<std::string> Notes(const LayerScaler::Config& config) {
  std::vector<std::string> notes;
  if (config.growth_interval < 1) {
    notes.push_back("growth_interval below 1: the scale never grows");
  }
  if (config.min_scale > config.max_scale) {
    notes.push_back("min_scale above max_scale: the first change sets the scale to min_scale");
  } else if (config.init_scale < config.min_scale || config.init_scale > config.max_scale) {
    notes.push_back(
        "init_scale outside [min_scale, max_scale] is not clamped before the first change");
  }
  NoteCeiling("max_scale", config.max_scale,
              CleanStepsToReach<LayerScaler>(config, config.max_scale), notes);
  return notes;
}

ConfiguredScaler MakeFairscale(const ParameterMap& given, std::string_view) {
  const Settings settings{"fairscale", FairscaleParameters(), given};
  const LayerScaler::Config config = {.init_scale = settings.Number("init_scale"),
                                      .growth_factor = settings.Number("growth_factor"),
                                      .backoff_factor = settings.Number("backoff_factor"),
                                      .growth_interval = settings.Integer("growth_interval"),
                                      .min_scale = settings.Number("min_scale"),
                                      .max_scale = settings.Number("max_scale")};
  const std::vector<NamedValue> parameters = {
      {"init_scale", config.init_scale},         {"growth_factor", config.growth_factor},
      {"backoff_factor", config.backoff_factor}, {"growth_interval", config.growth_interval},
      {"min_scale", config.min_scale},           {"max_scale", config.max_scale}};
  CheckFactors(config.growth_factor, config.backoff_factor, parameters);
  return {.scaler = LossScaler::Make<LayerScaler>(config),
          .parameters = parameters,
          .notes = Notes(config)};
}

}  // namespace

// The original tests the gradients in step(), after unscale().
PolicyInfo FairscalePolicy() {
  return {.name = "fairscale",
          .aliases = {"fairscale_layerwise", "fairscale_layerwise_1layer"},
          .summary = "fairscale's LayerwiseGradientScaler; a scale for each layer",
          .rules = {.finite_test = FiniteTest::kUnscaledElementwise,
                    .granularity = ScaleGranularity::kLayer},
          .parameters = FairscaleParameters(),
          .make = MakeFairscale,
          .checkpoint = CheckpointContent::kNothing};
}

}  // namespace dlsim::sim
