// SPDX-License-Identifier: Apache-2.0
// The scalers of TensorFlow, Keras and Paddle: DynamicLossScale of TensorFlow 2 and
// LossScaleOptimizer of Keras 2, one rule under two sets of names; LossScaleOptimizer of Keras 3,
// which has neither floor nor ceiling; ExponentialUpdateLossScaleManager of TensorFlow 1; Paddle's
// GradScaler of dynamic graphs and the kernel of its static graphs.
#include <cmath>
#include <string>
#include <tuple>

#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

// What TensorFlow's and Paddle's static graph share: a floor of 1 that nobody can set.

// Not std::max: a NaN stays.
float AtLeastOne(float scale) { return scale < 1 ? 1.0f : scale; }

void NoteFloorOfOne(std::string_view start_name, double start, std::vector<std::string>& notes) {
  if (start < 1) {
    notes.push_back(
        std::string(start_name)
            .append(" below 1: the first decrease raises the scale to 1, the fixed floor"));
  } else {
    notes.push_back("the floor of 1 is fixed: gradients that overflow at 1 skip every step");
  }
}

// Sources: tensorflow/python/training/experimental/loss_scale.py and
// keras/mixed_precision/loss_scale_optimizer.py of Keras 2.15.

struct TfNames {
  static constexpr const char* kCounter = "num_good_steps";
  static constexpr const char* kPeriod = "increment_period";
};
struct Keras2Names {
  static constexpr const char* kCounter = "counter";
  static constexpr const char* kPeriod = "growth_steps";
};

struct DynamicConfig {
  float initial_loss_scale = 0;
  int64_t period = 0;
  float multiplier = 0;
  bool dynamic = true;
};

template <class Names>
struct DynamicLossScale {
  using Config = DynamicConfig;
  struct State {
    float scale = 0;
    int64_t good_steps = 0;
  };
  static State Start(const Config& config) { return {config.initial_loss_scale, 0}; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    if (input.overflow) {
      return {.next = {AtLeastOne(state.scale / config.multiplier), 0}, .skip = true};
    }
    if (state.good_steps + 1 < config.period) return {.next = {state.scale, state.good_steps + 1}};
    const float grown = state.scale * config.multiplier;
    return {.next = {std::isfinite(grown) ? grown : state.scale, 0}};
  }
  static constexpr std::tuple kFields = {StateField{"current_loss_scale", &State::scale},
                                         StateField{Names::kCounter, &State::good_steps}};
};

// Notes the fixed floor, unless the first scale is infinite.
void NoteLimits(std::string_view start_name, float start, std::vector<std::string>& notes) {
  if (std::isfinite(start)) return NoteFloorOfOne(start_name, start, notes);
  notes.push_back(std::string(start_name) + " is infinite as float32 and can never come back");
}

// A fixed scale of Keras 2, with the refusals of the original's constructor.
void FixScale(Setup<DynamicConfig>& setup) {
  const Settings& settings = setup.settings;
  if (!settings.Given("initial_loss_scale")) {
    throw PolicyRefusal{"ValueError",
                        "\"initial_scale\" must be specified if \"dynamic\" is False"};
  }
  if (settings.Given("growth_steps")) {
    throw PolicyRefusal{"ValueError",
                        "\"dynamic_growth_steps\" must be None if \"dynamic\" is False, but got: " +
                            std::to_string(setup.config.period)};
  }
  setup.scaler = LossScaler::Make<StaticScale>({settings.StaticScale("initial_loss_scale")});
}

template <class Names>
PolicyInfo PolicyOfDynamic(PolicyInfo info, std::vector<Parameter<DynamicConfig>> rows) {
  info.rules = {.finite_test = FiniteTest::kUnscaledElementwise,
                .clip_rule = ClipRule::kTensorFlow};
  rows.insert(rows.begin() + 2,
              Row(&DynamicConfig::multiplier, "multiplier", {}, "2",
                  "multiplies the scale on growth and divides it on an overflow", kFactor));
  return PolicyOf<DynamicLossScale<Names>>(
      std::move(info), std::move(rows), [](Setup<DynamicConfig>& setup) {
        const DynamicConfig& config = setup.config;
        if (!config.dynamic) return FixScale(setup);
        NoteLimits("initial_loss_scale", config.initial_loss_scale, setup.notes);
        setup.NoteIf(config.period < 1,
                     std::string(Names::kPeriod) + " below 1: the scale grows on every step");
        setup.NoteIf(config.multiplier <= 1,
                     "multiplier of 1 or less: overflows do not lower the scale");
      });
}

}  // namespace

PolicyInfo TfPolicy() {
  using Config = DynamicConfig;
  return PolicyOfDynamic<TfNames>(
      {.name = "tf",
       .aliases = {"tf_dynamic_loss_scale", "tensorflow"},
       .summary = "DynamicLossScale of TensorFlow 2; its floor is 1"},
      {Row(&Config::initial_loss_scale, "initial_loss_scale", {"init_scale"}, "2^15",
           "loss scale of the first step", kStart),
       Row(&Config::period, TfNames::kPeriod, {"growth_steps"}, "2000",
           "consecutive clean steps until it grows", kInterval)});
}

PolicyInfo Keras2Policy() {
  using Config = DynamicConfig;
  return PolicyOfDynamic<Keras2Names>(
      {.name = "keras2",
       .aliases = {"keras2_loss_scale_optimizer"},
       .summary = "LossScaleOptimizer of Keras 2; the rule of tf"},
      {Row(&Config::initial_loss_scale, "initial_loss_scale", {"initial_scale", "init_scale"},
           "2^15", "scale of the first step", kStart),
       Row(&Config::period, Keras2Names::kPeriod, {"dynamic_growth_steps", "increment_period"},
           "2000", "consecutive clean steps until it grows", kInterval),
       Row(&Config::dynamic, "dynamic", {}, "true",
           "false: the scale never changes and no step is skipped")});
}

// Keras 3. Source: keras/src/optimizers/loss_scale_optimizer.py.

namespace {

struct LossScaleOptimizer {
  struct Config {
    float initial_scale = 0;
    int64_t dynamic_growth_steps = 0;
    bool dynamic = true;
  };
  struct State {
    float scale = 0;
    int64_t step_counter = 0;
  };
  static State Start(const Config& config) { return {config.initial_scale, 0}; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    if (input.overflow) return {.next = {state.scale / 2, 0}, .skip = true};
    // Equality: a counter restored beyond the number of steps never meets it again.
    const bool grow = state.step_counter + 1 == config.dynamic_growth_steps;
    if (grow) return {.next = {state.scale * 2, 0}};
    return {.next = {state.scale, state.step_counter + 1}};
  }
  static constexpr std::tuple kFields = {StateField{"dynamic_scale", &State::scale},
                                         StateField{"step_counter", &State::step_counter}};
};

}  // namespace

PolicyInfo KerasPolicy() {
  using Config = LossScaleOptimizer::Config;
  return PolicyOf<LossScaleOptimizer>(
      {.name = "keras",
       .aliases = {"keras3", "keras3_loss_scale_optimizer"},
       .summary = "LossScaleOptimizer of Keras 3; no floor, no ceiling",
       .rules = {.finite_test = FiniteTest::kElementwise, .clip_rule = ClipRule::kTensorFlow}},
      {Row(&Config::initial_scale, "initial_scale", {"initial_loss_scale", "init_scale"}, "2^15",
           "loss scale of the first step", kStart),
       Row(&Config::dynamic_growth_steps, "dynamic_growth_steps", {"growth_steps"}, "2000",
           "consecutive clean steps until the scale doubles", kInterval),
       Row(&Config::dynamic, "dynamic", {}, "true", "false is refused")},
      [](Setup<Config>& setup) {
        if (!setup.config.dynamic) {
          throw PolicyRefusal{
              "ValueError",
              "LossScaleOptimizer no longer supports `dynamic=False`. Instead, simply "
              "set `loss_scale_factor` directly on the `inner_optimizer`."};
        }
        if (setup.config.dynamic_growth_steps < 1) {
          setup.Note("dynamic_growth_steps below 1: the scale never grows");
          setup.Note("no floor: the scale can reach 0");
        } else {
          setup.Note(
              "no floor and no ceiling: the scale can reach 0 or infinity and never comes back");
        }
        NoteDeadStart("initial_scale", setup.config.initial_scale, setup.notes);
      });
}

// TensorFlow 1. Source: tensorflow/contrib/mixed_precision/python/loss_scale_manager.py.

namespace {

struct ExponentialUpdate {
  struct Config {
    float init_loss_scale = 0;
    int64_t incr_every_n_steps = 0;
    int64_t decr_every_n_nan_or_inf = 0;
    float incr_ratio = 0;
    float decr_ratio = 0;
  };
  struct State {
    float scale = 0;
    int64_t good = 0;
    int64_t bad = 0;
  };
  static State Start(const Config& config) { return {config.init_loss_scale, 0, 0}; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    if (input.overflow) {
      // An overflow ends the row of clean steps, but a clean step leaves `bad` as it is.
      if (state.bad + 1 < config.decr_every_n_nan_or_inf) {
        return {.next = {state.scale, 0, state.bad + 1}, .skip = true};
      }
      return {.next = {AtLeastOne(state.scale * config.decr_ratio), 0, 0}, .skip = true};
    }
    if (state.good + 1 < config.incr_every_n_steps) {
      return {.next = {state.scale, state.good + 1, state.bad}};
    }
    const float grown = state.scale * config.incr_ratio;
    return {.next = {std::isfinite(grown) ? grown : state.scale, 0, 0}};
  }
  static constexpr std::tuple kFields = {StateField{"loss_scale", &State::scale},
                                         StateField{"good", &State::good},
                                         StateField{"bad", &State::bad}};
};

}  // namespace

PolicyInfo TfContribPolicy() {
  using Config = ExponentialUpdate::Config;
  return PolicyOf<ExponentialUpdate>(
      {.name = "tf-contrib",
       .aliases = {"tf_contrib_exponential"},
       .summary = "ExponentialUpdateLossScaleManager of tf.contrib in TensorFlow 1",
       .rules = {.finite_test = FiniteTest::kUnscaledElementwise,
                 .clip_rule = ClipRule::kTensorFlow}},
      {Row(&Config::init_loss_scale, "init_loss_scale", {"init_scale"}, "2^15",
           "loss scale of the first step", kStart),
       Row(&Config::incr_every_n_steps, "incr_every_n_steps", {}, "2000",
           "consecutive clean steps until the scale grows", kInterval),
       Row(&Config::decr_every_n_nan_or_inf, "decr_every_n_nan_or_inf", {}, "2",
           "overflows since the last change until it shrinks", kOverflows),
       Row(&Config::incr_ratio, "incr_ratio", {}, "2", "multiplies the scale on growth", kGrowth),
       Row(&Config::decr_ratio, "decr_ratio", {}, "0.8", "multiplies the scale when it shrinks",
           kBackoff)},
      [](Setup<Config>& setup) {
        const Config& config = setup.config;
        NoteLimits("init_loss_scale", config.init_loss_scale, setup.notes);
        setup.NoteIf(config.decr_every_n_nan_or_inf > 1,
                     "overflows add up across clean steps until the scale changes; they need not "
                     "follow each other");
        setup.NoteIf(config.decr_every_n_nan_or_inf < 1,
                     "decr_every_n_nan_or_inf below 1 acts as 1");
        setup.NoteIf(config.incr_every_n_steps < 1,
                     "incr_every_n_steps below 1: the scale grows on every clean step");
        setup.NoteIf(config.decr_ratio >= 1,
                     "decr_ratio of 1 or more: overflows do not lower the scale");
      });
}

// Paddle's two share a rule but not its limits. Sources: python/paddle/amp/grad_scaler.py,
// paddle/phi/kernels/impl/amp_kernel_impl.h; the finite test on unscaled gradients is in
// paddle/phi/kernels/gpu/amp_kernel.cu.

namespace {

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
  static constexpr std::tuple kFields = {StateField{Graph::kScale, &State::scale},
                                         StateField{Graph::kGood, &State::good},
                                         StateField{Graph::kBad, &State::bad}};
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
