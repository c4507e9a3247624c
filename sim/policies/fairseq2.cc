// SPDX-License-Identifier: Apache-2.0
// StandardFloat16LossScaler of fairseq2: torch's GradScaler, and a trainer that stops where the
// scale falls below a minimum. Sources: facebookresearch/fairseq2, optim/fp16_loss_scaler.py and
// trainer.py.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "sim/policies/grad_scaler.h"
#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct Fairseq2Scaler {
  struct Config {
    TorchConfig torch;
    double min_scale = 0;
  };
  using State = TorchState;
  static State Start(const Config& config) { return StartAsTorch(config.torch); }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return AlikeUntil(config.torch.growth_interval, state.growth_tracker);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"scale", &State::scale},
                      StateField{"growth_tracker", &State::growth_tracker}};
  }
};

// Python's math.isclose with the tolerances of the original.
bool IsClose(double a, double b) {
  if (a == b) return true;
  if (!std::isfinite(a) || !std::isfinite(b)) return false;
  return std::fabs(a - b) <= std::max(1.3e-6 * std::max(std::fabs(a), std::fabs(b)), 1e-5);
}

// A fall of less than 1e-5 passes for no change, so that a scale as small as that gets below the
// minimum unseen.
Transition<TorchState> Fairseq2Scaler::Next(const Config& config, const State& state,
                                            const ScalerInput& input) {
  Transition<State> transition = UpdateAsTorch(config.torch, state, input);
  float& scale = transition.next.scale;
  if (IsClose(scale, state.scale) || scale > state.scale || !(scale < config.min_scale)) {
    return transition;
  }
  scale = static_cast<float>(config.min_scale);
  transition.event = ScalerEvent{.type = "MinimumLossScaleReachedError",
                                 .message = "Loss is scaled down to minimum.",
                                 .fatal = true,
                                 .details = {}};
  return transition;
}

const std::vector<ParameterInfo>& Fairseq2Parameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"init_scale", {"initial_loss_scale"}, "65536", "loss scale of the first step", kStart},
      {"scale_factor", {}, "2", "multiplies the scale on growth, divides it otherwise", kFactor},
      {"scale_window", {}, "2000", "consecutive clean steps until the scale grows", kInterval},
      {"min_scale", {"min_loss_scale"}, "0.0001", "a fall below this stops the training", kFloor},
  };
  return kParameters;
}

std::vector<std::string> Fairseq2Notes(const Settings& settings,
                                       const Fairseq2Scaler::Config& config) {
  std::vector<std::string> notes;
  NoteKernelInterval("scale_window", settings.Integer("scale_window"), config.torch.growth_interval,
                     notes);
  NoteDeadStart("init_scale", Fairseq2Scaler::Start(config).scale, notes);
  if (!settings.Given("init_scale") && !settings.Given("scale_window")) {
    notes.push_back(
        "these are the defaults of the class; fairseq2's recipes start at 128 and have a "
        "scale_window of 2^14 / (data-parallel workers * accumulated steps)");
  }
  return notes;
}

ConfiguredScaler MakeFairseq2(const ParameterMap& given, std::string_view) {
  const Settings settings{"fairseq2", Fairseq2Parameters(), given};
  const double init_scale = settings.Number("init_scale");
  const double scale_factor = settings.Number("scale_factor");
  const int64_t window = settings.Integer("scale_window");
  const double min_scale = settings.Number("min_scale");
  const std::vector<NamedValue> parameters = {{"init_scale", init_scale},
                                              {"scale_factor", scale_factor},
                                              {"scale_window", window},
                                              {"min_scale", min_scale}};
  if (scale_factor == 0) {
    throw PolicyRefusal{"ZeroDivisionError", "float division by zero", parameters};
  }
  CheckFactors(scale_factor, 1 / scale_factor, parameters);
  CheckFirstScale(init_scale, parameters);
  const Fairseq2Scaler::Config config = {.torch = {.init_scale = init_scale,
                                                   .growth_factor = scale_factor,
                                                   .backoff_factor = 1 / scale_factor,
                                                   .growth_interval = static_cast<int32_t>(window)},
                                         .min_scale = min_scale};
  return {.scaler = LossScaler::Make<Fairseq2Scaler>(config),
          .parameters = parameters,
          .notes = Fairseq2Notes(settings, config)};
}

}  // namespace

PolicyInfo Fairseq2Policy() {
  return {.name = "fairseq2",
          .aliases = {},
          .summary = "fairseq2's StandardFloat16LossScaler: torch's rule; stops at min_scale",
          .rules = {.finite_test = FiniteTest::kElementwise, .optimizer_skip = OptimizerSkip::kOwn},
          .parameters = Fairseq2Parameters(),
          .make = MakeFairseq2};
}

}  // namespace dlsim::sim
