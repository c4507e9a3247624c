// SPDX-License-Identifier: Apache-2.0
// torch's GradScaler as the recipes of icefall train with it: a low scale is doubled by the
// training loop, and a tiny one stops it. Source: k2-fsa/icefall,
// egs/librispeech/ASR/zipformer/train.py.
#include <algorithm>
#include <string>
#include <tuple>

#include "sim/base/quantity.h"
#include "sim/policies/grad_scaler.h"
#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

constexpr double kTooSmall = 1e-5;

struct IcefallScaler {
  struct Config {
    TorchConfig torch;
    double below_25 = 0;  // doubles a scale below this after every 25th batch, and so on
    double below_100 = 0;
    double below_400 = 0;
  };
  struct State : TorchState {
    int64_t batch_idx = 0;
  };
  static State Start(const Config& config) { return {StartAsTorch(config.torch), 0}; }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    const double highest = std::max({config.below_25, config.below_100, config.below_400});
    if (!(state.scale >= highest && state.scale >= kTooSmall)) return 0;
    return AlikeUntil(config.torch.growth_interval, state.growth_tracker);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"scale", &State::scale},
                      StateField{"growth_tracker", &State::growth_tracker},
                      StateField{"batch_idx", &State::batch_idx}};
  }
};

bool IsDoubled(const IcefallScaler::Config& config, double scale, int64_t batch_idx) {
  return (batch_idx % 25 == 0 && scale < config.below_25) ||
         (batch_idx % 100 == 0 && scale < config.below_100) ||
         (batch_idx % 400 == 0 && scale < config.below_400);
}

Transition<IcefallScaler::State> IcefallScaler::Next(const Config& config, const State& state,
                                                     const ScalerInput& input) {
  const Transition<TorchState> torch = UpdateAsTorch(config.torch, state, input);
  Transition<State> transition = {.next = {torch.next, state.batch_idx + 1}, .skip = torch.skip};
  const double scale = torch.next.scale;
  if (scale < kTooSmall) {
    transition.event =
        ScalerEvent{.type = "RuntimeError",
                    .message = "grad_scale is too small, exiting: " + PythonRepr(scale),
                    .fatal = true,
                    .details = {}};
  } else if (IsDoubled(config, scale, state.batch_idx)) {
    transition.next.scale = static_cast<float>(scale * 2);  // growth_tracker goes on
  }
  return transition;
}

const std::vector<ParameterInfo>& IcefallParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"init_scale", {"initial_loss_scale"}, "1", "loss scale of the first step", kStart},
      {"growth_factor", {}, "2", "multiplies the scale after growth_interval clean steps", kGrowth},
      {"backoff_factor", {}, "0.5", "multiplies the scale on an overflow", kBackoff},
      {"growth_interval", {}, "2000", "consecutive clean steps until the scale grows", kInterval},
      {"below_25", {}, "2", "each 25th batch doubles a scale below this"},
      {"below_100", {}, "8", "each 100th batch doubles a scale below this"},
      {"below_400", {}, "32", "each 400th batch doubles a scale below this"},
  };
  return kParameters;
}

std::vector<std::string> IcefallNotes(const IcefallScaler::Config& config, int64_t interval) {
  std::vector<std::string> notes;
  NoteKernelInterval("growth_interval", interval, config.torch.growth_interval, notes);
  notes.push_back(
      "the training loop doubles a low scale after every 25th, 100th or 400th batch, and a scale "
      "below 1e-5 stops it");
  return notes;
}

ConfiguredScaler MakeIcefall(const ParameterMap& given, std::string_view) {
  const Settings settings{"icefall", IcefallParameters(), given};
  const int64_t interval = settings.Integer("growth_interval");
  const IcefallScaler::Config config = {
      .torch = {.init_scale = settings.Number("init_scale"),
                .growth_factor = settings.Number("growth_factor"),
                .backoff_factor = settings.Number("backoff_factor"),
                .growth_interval = static_cast<int32_t>(interval)},
      .below_25 = settings.Number("below_25"),
      .below_100 = settings.Number("below_100"),
      .below_400 = settings.Number("below_400")};
  const std::vector<NamedValue> parameters = {{"init_scale", config.torch.init_scale},
                                              {"growth_factor", config.torch.growth_factor},
                                              {"backoff_factor", config.torch.backoff_factor},
                                              {"growth_interval", interval},
                                              {"below_25", config.below_25},
                                              {"below_100", config.below_100},
                                              {"below_400", config.below_400}};
  CheckFactors(config.torch.growth_factor, config.torch.backoff_factor, parameters);
  CheckFirstScale(config.torch.init_scale, parameters);
  return {.scaler = LossScaler::Make<IcefallScaler>(config),
          .parameters = parameters,
          .notes = IcefallNotes(config, interval)};
}

}  // namespace

PolicyInfo IcefallPolicy() {
  return {.name = "icefall",
          .aliases = {},
          .summary = "icefall: torch's rule; the training loop doubles a low scale",
          .rules = {.finite_test = FiniteTest::kElementwise},
          .parameters = IcefallParameters(),
          .make = MakeIcefall};
}

}  // namespace dlsim::sim
