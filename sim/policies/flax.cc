// SPDX-License-Identifier: Apache-2.0
// DynamicScale of flax: float32, saturating. Source: google/flax, flax/training/dynamic_scale.py.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

constexpr float kFloatMax = std::numeric_limits<float>::max();

struct DynamicScale {
  // Python scalars take the float32 type of the scale.
  struct Config {
    float scale = 0;
    float growth_factor = 2;
    float backoff_factor = 0.5;
    int32_t growth_interval = 0;
    std::optional<float> minimum_scale;
  };
  struct State {
    float scale = 0;
    int32_t fin_steps = 0;
  };
  static State Start(const Config& config) { return {config.scale, 0}; }
  // Compared before this step counts. std::min and std::max keep a NaN that is their first
  // argument, as jnp.minimum and jnp.maximum do; the second one is never NaN.
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    const bool grow = state.fin_steps == config.growth_interval;
    State next = state;
    next.fin_steps =
        grow || input.overflow ? 0 : static_cast<int32_t>(int64_t{state.fin_steps} + 1);
    if (input.overflow) {
      next.scale = state.scale * config.backoff_factor;
      if (config.minimum_scale) next.scale = std::max(next.scale, *config.minimum_scale);
    } else if (grow) {
      next.scale = std::min(state.scale * config.growth_factor, kFloatMax);
    }
    return {.next = next, .skip = input.overflow};
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"scale", &State::scale},
                      StateField{"fin_steps", &State::fin_steps}};
  }
};

void FinishFlax(Setup<DynamicScale::Config>& setup) {
  const DynamicScale::Config& config = setup.config;
  if (config.scale != 0 || config.minimum_scale.value_or(0) <= 0) {
    NoteDeadStart("scale", config.scale, setup.notes);
  }
  if (config.growth_interval < 0) {
    setup.Note("growth_interval below 0: the scale never grows");
  } else if (config.growth_interval == 0) {
    setup.Note("growth_interval 0: every clean step grows the scale");
  } else {
    setup.Note("the scale grows on clean step " +
               std::to_string(int64_t{config.growth_interval} + 1) +
               ", one more than growth_interval");
  }
  setup.NoteIf(!(config.growth_factor > 1), "growth_factor of 1 or less: the scale never grows");
  NoteCeiling("the largest float32", kFloatMax, CleanStepsToReach<DynamicScale>(config, kFloatMax),
              setup.notes);
  setup.NoteIf(config.backoff_factor >= 1,
               "backoff_factor of 1 or more: an overflow does not lower the scale");
  setup.NoteIf(config.minimum_scale && config.scale < *config.minimum_scale,
               "scale below minimum_scale: an overflow raises it to minimum_scale");
  NoteZero(OverflowsToZero<DynamicScale>(config), setup.notes);
}

}  // namespace

PolicyInfo FlaxPolicy() {
  using Config = DynamicScale::Config;
  using Row = Parameter<Config>;
  return PolicyOf<DynamicScale>(
      {.name = "flax",
       .summary = "DynamicScale of flax; saturates at the largest float32",
       .rules = {.finite_test = FiniteTest::kUnscaledElementwise}},
      {Row(&Config::scale, "scale", {"init_scale", "initial_loss_scale"}, "65536",
           "loss scale of the first step", kStart),
       Row(&Config::growth_factor, "growth_factor", {}, "2",
           "multiplies the scale on growth, up to the largest float32", kGrowth),
       Row(&Config::backoff_factor, "backoff_factor", {}, "0.5",
           "multiplies the scale on an overflow", kBackoff),
       Row(&Config::growth_interval, "growth_interval", {}, "2000",
           "the scale grows after this many clean steps plus one", kInterval),
       Row(&Config::minimum_scale, "minimum_scale", {}, "2^-126", "floor, or none", kFloor)},
      FinishFlax);
}

}  // namespace dlsim::sim
