// SPDX-License-Identifier: Apache-2.0
// A loss scale that never changes, also used by the families that can switch their dynamics off.
#pragma once

#include <tuple>

#include "dlsim/sim/loss_scaler.h"
#include "sim/policies/alike_steps.h"

namespace dlsim::sim {

// Never skips a step: whatever overflows is applied.
struct StaticScale {
  struct Config {
    float scale = 1;
  };
  struct State {
    float scale = 1;
  };
  static State Start(const Config& config) { return {config.scale}; }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config&, const State& state, const ScalerInput&) {
    return {.next = state};
  }
  static int64_t AlikeSteps(const Config&, const State&) { return kAlwaysAlike; }
  static constexpr auto Fields() { return std::tuple{StateField{"loss_scale", &State::scale}}; }
};

}  // namespace dlsim::sim
