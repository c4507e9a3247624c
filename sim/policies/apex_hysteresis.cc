// SPDX-License-Identifier: Apache-2.0
// The CUDA kernel update_scale_hysteresis of apex under the GradScaler of NeMo, which extends
// torch's. Sources: NVIDIA/apex, csrc/update_scale_hysteresis.cu; NVIDIA/NeMo, nlp_overrides.py.
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "dlsim/error.h"
#include "sim/policies/grad_scaler.h"
#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct HysteresisScaler {
  struct Config {
    double init_scale = 0;
    double growth_factor = 0;
    double backoff_factor = 0;
    int32_t growth_interval = 0;  // the kernel's own types
    int32_t hysteresis = 0;
  };
  struct State {
    float scale = 0;
    int32_t growth_tracker = 0;
    int32_t hysteresis_tracker = 0;
  };
  static State Start(const Config& config) {
    return {static_cast<float>(config.init_scale), 0, config.hysteresis};
  }
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

// Wraps around as the kernel's int does.
int32_t Plus(int32_t tracker, int32_t step) {
  return static_cast<int32_t>(static_cast<uint32_t>(tracker) + static_cast<uint32_t>(step));
}

Transition<HysteresisScaler::State> HysteresisScaler::Next(const Config& config, const State& state,
                                                           const ScalerInput& input) {
  State next = state;
  if (input.overflow) {
    next.hysteresis_tracker = Plus(state.hysteresis_tracker, -1);
    next.growth_tracker = 0;
    if (next.hysteresis_tracker <= 0) {
      next.scale = static_cast<float>(state.scale * config.backoff_factor);
    }
    return {.next = next, .skip = true};
  }
  next.growth_tracker = Plus(state.growth_tracker, 1);
  if (next.growth_tracker == config.growth_interval) {
    const float grown = static_cast<float>(state.scale * config.growth_factor);
    if (std::isfinite(grown)) next.scale = grown;
    next.growth_tracker = 0;
  }
  next.hysteresis_tracker = config.hysteresis;
  return {.next = next};
}

const std::vector<ParameterInfo>& ApexHysteresisParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"init_scale", {"initial_loss_scale"}, "65536", "loss scale of the first step", kStart},
      {"growth_factor", {}, "2", "multiplies the scale after growth_interval clean steps", kGrowth},
      {"backoff_factor", {}, "0.5", "multiplies the scale when hysteresis is used up", kBackoff},
      {"growth_interval",
       {},
       "2000",
       "consecutive clean steps until the scale grows; 0: never",
       kInterval},
      {"hysteresis", {}, "1", "overflows in a row until the scale falls", kOverflows},
  };
  return kParameters;
}

int32_t ReadHysteresis(const Settings& settings) {
  const int64_t hysteresis = settings.Integer("hysteresis");
  const int32_t narrow = static_cast<int32_t>(hysteresis);
  if (narrow == hysteresis) return narrow;
  throw UsageError("apex-hysteresis.hysteresis", "out of range", "an integer of 32 bits",
                   Quoted(settings.Text("hysteresis")));
}

std::vector<std::string> Notes(const HysteresisScaler::Config& config, int64_t asked_interval) {
  std::vector<std::string> notes;
  NoteKernelInterval("growth_interval", asked_interval, config.growth_interval, notes);
  if (config.hysteresis > 1) {
    notes.push_back(
        "hysteresis counts overflows in a row: one clean step restores it, and without one every "
        "overflow from number " +
        std::to_string(config.hysteresis) + " on lowers the scale");
  } else if (config.hysteresis < 1) {
    notes.push_back("hysteresis below 1 acts as 1: every overflow lowers the scale");
  }
  NoteDeadStart("init_scale", HysteresisScaler::Start(config).scale, notes);
  NoteZero(OverflowsToZero<HysteresisScaler>(config), notes);
  return notes;
}

ConfiguredScaler MakeApexHysteresis(const ParameterMap& given, std::string_view) {
  const Settings settings{"apex-hysteresis", ApexHysteresisParameters(), given};
  const int64_t interval = settings.Integer("growth_interval");
  const HysteresisScaler::Config config = {.init_scale = settings.Number("init_scale"),
                                           .growth_factor = settings.Number("growth_factor"),
                                           .backoff_factor = settings.Number("backoff_factor"),
                                           .growth_interval = static_cast<int32_t>(interval),
                                           .hysteresis = ReadHysteresis(settings)};
  const std::vector<NamedValue> parameters = {{"init_scale", config.init_scale},
                                              {"growth_factor", config.growth_factor},
                                              {"backoff_factor", config.backoff_factor},
                                              {"growth_interval", interval},
                                              {"hysteresis", int64_t{config.hysteresis}}};
  CheckFactors(config.growth_factor, config.backoff_factor, parameters);
  CheckFirstScale(config.init_scale, parameters);
  return {.scaler = LossScaler::Make<HysteresisScaler>(config),
          .parameters = parameters,
          .notes = Notes(config, interval)};
}

}  // namespace

PolicyInfo ApexHysteresisPolicy() {
  return {.name = "apex-hysteresis",
          .aliases = {"apex_update_scale_hysteresis", "nemo"},
          .summary = "apex's hysteresis kernel under NeMo's GradScaler; overflows in a row count",
          .rules = {.finite_test = FiniteTest::kElementwise, .optimizer_skip = OptimizerSkip::kOwn},
          .parameters = ApexHysteresisParameters(),
          .make = MakeApexHysteresis};
}

}  // namespace dlsim::sim
