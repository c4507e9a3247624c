// SPDX-License-Identifier: Apache-2.0
// torch.amp.GradScaler: its rule since PyTorch 2.1 and the one of PyTorch 1.13, which can reach
// infinity. Sources: aten/src/ATen/native/cuda/AmpKernels.cu and torch/cuda/amp/grad_scaler.py.
#include <cmath>
#include <limits>
#include <tuple>

#include "sim/policies/grad_scaler.h"
#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct GradScaler {
  using Config = TorchConfig;
  using State = TorchState;
  static State Start(const Config& config) { return StartAsTorch(config); }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    return UpdateAsTorch(config, state, input);
  }
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return AlikeUntil(config.growth_interval, state.growth_tracker);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"scale", &State::scale},
                      StateField{"growth_tracker", &State::growth_tracker}};
  }
};

// The kernel multiplies the float32 scale by a double and rounds the product to float32.
float Times(float scale, double factor) { return static_cast<float>(scale * factor); }

// Wraps around as the kernel does on an interval that is never reached.
int32_t Increment(int32_t tracker) {
  return tracker == std::numeric_limits<int32_t>::max() ? std::numeric_limits<int32_t>::min()
                                                        : tracker + 1;
}

const std::vector<ParameterInfo>& TorchParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"init_scale", {"initial_loss_scale"}, "65536", "loss scale of the first step", kStart},
      {"growth_factor", {}, "2", "multiplies the scale after growth_interval clean steps", kGrowth},
      {"backoff_factor", {}, "0.5", "multiplies the scale on an overflow", kBackoff},
      {"growth_interval",
       {},
       "2000",
       "consecutive clean steps until the scale grows; 0: never",
       kInterval},
      {"enabled", {}, "true", "false: the scale is 1 and no step is skipped"},
  };
  return kParameters;
}

std::vector<std::string> Notes(const GradScaler::Config& config, int64_t asked_interval) {
  std::vector<std::string> notes;
  NoteKernelInterval("growth_interval", asked_interval, config.growth_interval, notes);
  const double start = GradScaler::Scale(GradScaler::Start(config));
  NoteDeadStart("init_scale", start, notes);
  if (config.growth == TorchGrowth::kAlways && config.growth_interval >= 1 && start > 0) {
    const double infinity = std::numeric_limits<double>::infinity();
    NoteNoCeiling(CleanStepsToReach<GradScaler>(config, infinity), notes);
  }
  NoteZero(OverflowsToZero<GradScaler>(config), notes);
  return notes;
}

ConfiguredScaler MakeTorch(std::string_view policy, TorchGrowth growth, const ParameterMap& given) {
  const Settings settings{policy, TorchParameters(), given};
  const int64_t interval = settings.Integer("growth_interval");
  const GradScaler::Config config = {.init_scale = settings.Number("init_scale"),
                                     .growth_factor = settings.Number("growth_factor"),
                                     .backoff_factor = settings.Number("backoff_factor"),
                                     .growth_interval = static_cast<int32_t>(interval),
                                     .growth = growth};
  const bool enabled = settings.Bool("enabled");
  const std::vector<NamedValue> parameters = {{"init_scale", config.init_scale},
                                              {"growth_factor", config.growth_factor},
                                              {"backoff_factor", config.backoff_factor},
                                              {"growth_interval", interval},
                                              {"enabled", enabled}};
  if (!enabled) {
    return {.scaler = LossScaler::Make<StaticScale>({1}), .parameters = parameters, .notes = {}};
  }
  CheckFactors(config.growth_factor, config.backoff_factor, parameters);
  CheckFirstScale(config.init_scale, parameters);
  return {.scaler = LossScaler::Make<GradScaler>(config),
          .parameters = parameters,
          .notes = Notes(config, interval)};
}

}  // namespace

Transition<TorchState> UpdateAsTorch(const TorchConfig& config, const TorchState& state,
                                     const ScalerInput& input) {
  if (input.overflow) {
    return {.next = {Times(state.scale, config.backoff_factor), 0}, .skip = true};
  }
  const int32_t clean_steps = Increment(state.growth_tracker);
  if (clean_steps != config.growth_interval) return {.next = {state.scale, clean_steps}};
  const float grown = Times(state.scale, config.growth_factor);
  const bool accept = config.growth == TorchGrowth::kAlways || std::isfinite(grown);
  return {.next = {accept ? grown : state.scale, 0}};
}

PolicyInfo TorchPolicy() {
  return {.name = "torch",
          .aliases = {"torch_new"},
          .summary = "torch.amp.GradScaler since PyTorch 2.1; keeps its scale finite",
          .rules = {.finite_test = FiniteTest::kElementwise, .optimizer_skip = OptimizerSkip::kOwn},
          .parameters = TorchParameters(),
          .make = [](const ParameterMap& given, std::string_view) {
            return MakeTorch("torch", TorchGrowth::kIfFinite, given);
          }};
}

PolicyInfo Torch113Policy() {
  return {.name = "torch-1.13",
          .aliases = {"torch_1_13"},
          .summary = "torch.cuda.amp.GradScaler of PyTorch 1.13; its scale can grow to infinity",
          .rules = {.finite_test = FiniteTest::kElementwise, .optimizer_skip = OptimizerSkip::kOwn},
          .parameters = TorchParameters(),
          .make = [](const ParameterMap& given, std::string_view) {
            return MakeTorch("torch-1.13", TorchGrowth::kAlways, given);
          }};
}

}  // namespace dlsim::sim
