// SPDX-License-Identifier: Apache-2.0
// Paddle's GradScaler of dynamic graphs and the kernel of static graphs, which share a rule but not
// its limits. Sources: python/paddle/amp/grad_scaler.py, paddle/phi/kernels/impl/amp_kernel_impl.h;
// the finite test on unscaled gradients is in paddle/phi/kernels/gpu/amp_kernel.cu.
#include <cmath>
#include <tuple>

#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct DynamicGraph {
  static constexpr const char* kScale = "scale";
  static constexpr const char* kGood = "incr_count";
  static constexpr const char* kBad = "decr_count";
  static float Grown(float, float product) { return product; }
  static float Shrunk(float product) { return product; }
};

struct StaticGraph {
  static constexpr const char* kScale = "loss_scaling";
  static constexpr const char* kGood = "good";
  static constexpr const char* kBad = "bad";
  static float Grown(float scale, float product) {
    return std::isfinite(product) ? product : scale;
  }
  static float Shrunk(float product) { return AtLeastOne(product); }
};

// Ratios are float32, as the operators of both graphs hold them.
struct PaddleConfig {
  float init_loss_scaling = 0;
  AsFloat32 incr_ratio;
  AsFloat32 decr_ratio;
  int64_t incr_every_n_steps = 0;
  int64_t decr_every_n_nan_or_inf = 0;
  bool dynamic = true;  // false: overflows still skip their step
  bool enable = true;
};

template <class Graph>
struct PaddleScaler {
  using Config = PaddleConfig;
  struct State {
    float scale = 0;
    int64_t good = 0;
    int64_t bad = 0;
  };
  static State Start(const Config& config) { return {config.init_loss_scaling, 0, 0}; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    if (!config.dynamic) return {.next = state, .skip = input.overflow};
    if (input.overflow) {
      if (state.bad + 1 != config.decr_every_n_nan_or_inf) {
        return {.next = {state.scale, 0, state.bad + 1}, .skip = true};
      }
      return {.next = {Graph::Shrunk(state.scale * config.decr_ratio), 0, 0}, .skip = true};
    }
    if (state.good + 1 != config.incr_every_n_steps) {
      return {.next = {state.scale, state.good + 1, 0}};
    }
    return {.next = {Graph::Grown(state.scale, state.scale * config.incr_ratio), 0, 0}};
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{Graph::kScale, &State::scale},
                      StateField{Graph::kGood, &State::good}, StateField{Graph::kBad, &State::bad}};
  }
};

void NoteCounts(Setup<PaddleConfig>& setup) {
  const int64_t overflows = setup.config.decr_every_n_nan_or_inf;
  setup.NoteIf(overflows > 1,
               "a clean step clears the count of overflows: decr_every_n_nan_or_inf of them must "
               "follow each other");
  setup.NoteIf(overflows < 1, "decr_every_n_nan_or_inf below 1: the scale never shrinks");
  setup.NoteIf(setup.config.incr_every_n_steps < 1,
               "incr_every_n_steps below 1: the scale never grows");
}

void FinishDynamicGraph(Setup<PaddleConfig>& setup) {
  const PaddleConfig& config = setup.config;
  if (!config.enable) {
    setup.scaler = LossScaler::Make<StaticScale>({1});
    return;
  }
  if (!(config.incr_ratio.given > 1.0)) {
    throw PolicyRefusal{"AssertionError", "The incr_ratio must be > 1.0."};
  }
  if (!(config.decr_ratio.given < 1.0)) {
    throw PolicyRefusal{"AssertionError", "The decr_ratio must be < 1.0."};
  }
  if (!config.dynamic) return setup.Note("the scale never changes, but overflows skip their step");
  const bool grows = config.incr_every_n_steps >= 1;
  const bool shrinks = config.decr_every_n_nan_or_inf >= 1;
  setup.NoteIf(grows && shrinks,
               "no ceiling and no floor: the scale can grow to infinity or fall to 0 and never "
               "comes back");
  setup.NoteIf(grows && !shrinks,
               "no ceiling: the scale can grow to infinity and never comes back");
  setup.NoteIf(shrinks && !grows, "no floor: the scale can fall to 0");
  NoteDeadStart("init_loss_scaling", config.init_loss_scaling, setup.notes);
  NoteCounts(setup);
}

void FinishStaticGraph(Setup<PaddleConfig>& setup) {
  const float start = setup.config.init_loss_scaling;
  if (std::isfinite(start)) {
    NoteFloorOfOne("init_loss_scaling", start, setup.notes);
  } else {
    NoteDeadStart("init_loss_scaling", start, setup.notes);
  }
  NoteCounts(setup);
}

}  // namespace

PolicyInfo PaddlePolicy() {
  using Config = PaddleConfig;
  using Row = Parameter<Config>;
  return PolicyOf<PaddleScaler<DynamicGraph>>(
      {.name = "paddle",
       .aliases = {"paddle_dygraph"},
       .summary = "paddle.amp.GradScaler of Paddle's dynamic graphs; no floor, no ceiling",
       .rules = {.finite_test = FiniteTest::kUnscaledElementwise}},
      {Row(&Config::init_loss_scaling, "init_loss_scaling", {"init_scale"}, "2^16",
           "loss scale of the first step", kStart),
       Row(&Config::incr_ratio, "incr_ratio", {}, "2", "multiplies the scale on growth", kGrowth),
       Row(&Config::decr_ratio, "decr_ratio", {}, "0.5", "multiplies the scale when it shrinks",
           kBackoff),
       Row(&Config::incr_every_n_steps, "incr_every_n_steps", {}, "2000",
           "consecutive clean steps until the scale grows", kInterval),
       Row(&Config::decr_every_n_nan_or_inf, "decr_every_n_nan_or_inf", {}, "1",
           "consecutive overflows until the scale shrinks", kOverflows),
       Row(&Config::dynamic, "use_dynamic_loss_scaling", {}, "true",
           "false: the scale never changes"),
       Row(&Config::enable, "enable", {}, "true", "false: the scale is 1 and no step is skipped")},
      FinishDynamicGraph);
}

PolicyInfo PaddleStaticPolicy() {
  using Config = PaddleConfig;
  using Row = Parameter<Config>;
  return PolicyOf<PaddleScaler<StaticGraph>>(
      {.name = "paddle-static",
       .aliases = {"paddle_static"},
       .summary = "loss scaling of Paddle's static graphs, with its older defaults; floor 1",
       .rules = {.finite_test = FiniteTest::kUnscaledElementwise}},
      {Row(&Config::init_loss_scaling, "init_loss_scaling", {"init_scale"}, "2^15",
           "loss scale of the first step", kStart),
       Row(&Config::incr_ratio, "incr_ratio", {}, "2", "multiplies the scale on growth", kGrowth),
       Row(&Config::decr_ratio, "decr_ratio", {}, "0.8", "multiplies the scale when it shrinks",
           kBackoff),
       Row(&Config::incr_every_n_steps, "incr_every_n_steps", {}, "1000",
           "consecutive clean steps until the scale grows", kInterval),
       Row(&Config::decr_every_n_nan_or_inf, "decr_every_n_nan_or_inf", {}, "2",
           "consecutive overflows until the scale shrinks", kOverflows)},
      FinishStaticGraph);
}

}  // namespace dlsim::sim
