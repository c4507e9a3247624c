// SPDX-License-Identifier: Apache-2.0
// The scalers of MindSpore that are no part of its amp, whose is in jmp.cc:
// DynamicLossScaleUpdateCell, in float32 with counters in int32, and DynamicLossScaleManager,
// updated on the host, with a Python number as its scale. Sources: MindSpore,
// mindspore/python/mindspore/nn/wrap/loss_scale.py and train/loss_scale_manager.py.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "sim/policies/policy.h"
#include "sim/policies/python_number.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct UpdateCell {
  struct Config {
    float loss_scale_value = 0;
    float scale_factor = 2;
    int32_t scale_window = 0;
  };
  struct State {
    float scale_sense = 0;
    int32_t cur_iter = 1;
    int32_t last_overflow_iter = 0;
  };
  static State Start(const Config& config) { return {.scale_sense = config.loss_scale_value}; }
  // A product with the rounded reciprocal, not a quotient. std::max keeps a NaN that is its first
  // argument.
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    State next = state;
    const int64_t clean_steps = int64_t{state.cur_iter} - state.last_overflow_iter;
    const bool increase = config.scale_window <= static_cast<int32_t>(clean_steps);
    if (input.overflow) {
      next.scale_sense = std::max(state.scale_sense * (1.0f / config.scale_factor), 1.0f);
    } else if (increase) {
      next.scale_sense = state.scale_sense * config.scale_factor;
    }
    if (input.overflow || increase) next.last_overflow_iter = state.cur_iter;
    next.cur_iter = static_cast<int32_t>(int64_t{state.cur_iter} + 1);
    return {.next = next, .skip = input.overflow};
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"scale_sense", &State::scale_sense},
                      StateField{"cur_iter", &State::cur_iter},
                      StateField{"last_overflow_iter", &State::last_overflow_iter}};
  }
};

}  // namespace

PolicyInfo MindsporeCellPolicy() {
  using Config = UpdateCell::Config;
  using Row = Parameter<Config>;
  return PolicyOf<UpdateCell>(
      {.name = "mindspore-cell",
       .aliases = {"mindspore_update_cell"},
       .summary = "DynamicLossScaleUpdateCell of MindSpore; its scale can grow to infinity",
       .rules = {.finite_test = FiniteTest::kUnscaledElementwise}},
      {Row(&Config::loss_scale_value, "loss_scale_value", {"init_scale", "initial_loss_scale"},
           "2^24", "loss scale of the first step", kStart),
       Row(&Config::scale_factor, "scale_factor", {}, "2",
           "multiplies the scale on growth; its reciprocal on an overflow", kFactor),
       Row(&Config::scale_window, "scale_window", {}, "2000",
           "clean steps since the last change until the scale grows", kInterval)},
      [](Setup<Config>& setup) {
        const Config& config = setup.config;
        const double infinity = std::numeric_limits<double>::infinity();
        if (std::isinf(config.loss_scale_value)) {
          setup.Note("loss_scale_value is infinite as float32 and can never come back");
        } else if (config.scale_factor > 1) {
          NoteNoCeiling(CleanStepsToReach<UpdateCell>(config, infinity), setup.notes);
        }
        NoteDivisor("scale_factor", config.scale_factor, setup.notes);
        setup.NoteIf(config.scale_window < 1, "scale_window below 1 acts as 1");
        setup.NoteIf(config.loss_scale_value < 1,
                     "loss_scale_value below 1: an overflow raises the scale to 1");
      });
}

// DynamicLossScaleManager.

namespace {

constexpr int64_t kBadStepMax = 1000;

const PythonNumber& One() {
  static const PythonNumber kOne = PythonNumber::Int(1);
  return kOne;
}

struct LossScaleManager {
  struct Config {
    PythonNumber init_loss_scale;
    PythonNumber scale_factor;
    PythonNumber scale_window;
  };
  struct State {
    PythonNumber loss_scale;
    int64_t cur_iter = 1;
    int64_t last_overflow_iter = 0;
    int64_t bad_step = 0;
  };
  static State Start(const Config& config) { return {.loss_scale = config.init_loss_scale}; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    return UpdateAsPython(state, input, [&](State& next) {
      if (input.overflow) {
        next.loss_scale = Max(next.loss_scale * (One() / config.scale_factor), One());
        next.last_overflow_iter = next.cur_iter;
        next.bad_step += 1;
      } else {
        if (config.scale_window.Divides(next.cur_iter - next.last_overflow_iter)) {
          next.loss_scale = next.loss_scale * config.scale_factor;
        }
        next.bad_step = 0;
      }
      if (next.bad_step > kBadStepMax) {
        throw PythonError{"RuntimeError", "('Dynamic loss scale Continuous overflow ', " +
                                              std::to_string(next.bad_step) +
                                              ", ' times, has exceeded maximum threshold.')"};
      }
      next.cur_iter += 1;
    });
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"loss_scale", &State::loss_scale},
                      StateField{"cur_iter", &State::cur_iter},
                      StateField{"last_overflow_iter", &State::last_overflow_iter},
                      StateField{"bad_step", &State::bad_step}};
  }
};

void CheckManager(const LossScaleManager::Config& config) {
  if (config.init_loss_scale < One()) {
    throw PolicyRefusal{"ValueError", "The argument 'init_loss_scale' must be > 1, but got " +
                                          config.init_loss_scale.Repr()};
  }
  const std::string window = "For 'DynamicLossScaleManager', the 'scale_window' must be int";
  if (!config.scale_window.is_int()) {
    throw PolicyRefusal{"TypeError", window + ", but got 'float'"};
  }
  if (config.scale_window < One()) {
    throw PolicyRefusal{"ValueError", window + " and must > 0, but got '" +
                                          config.scale_window.Repr() + "' with type 'int'."};
  }
  if (!(PythonNumber() < config.scale_factor)) {
    throw PolicyRefusal{"ValueError", "The argument 'scale_factor' must be > 0, but got " +
                                          config.scale_factor.Repr()};
  }
}

}  // namespace

PolicyInfo MindSporeManagerPolicy() {
  using Config = LossScaleManager::Config;
  using Row = Parameter<Config>;
  return PolicyOf<LossScaleManager>(
      {.name = "mindspore-manager",
       .aliases = {"mindspore_manager"},
       .summary = "MindSpore's DynamicLossScaleManager; 1001 overflows in a row raise",
       .rules = {.finite_test = FiniteTest::kUnscaledElementwise},
       .checkpoint = Kept::kNothing},
      {Row(&Config::init_loss_scale, "init_loss_scale", {"init_scale", "initial_loss_scale"},
           "2^24", "loss scale of the first step, at least 1", kStart),
       Row(&Config::scale_factor, "scale_factor", {}, "2",
           "the scale is multiplied by this or by its reciprocal", kFactor),
       Row(&Config::scale_window, "scale_window", {"loss_scale_window"}, "2000",
           "clean steps until the scale grows", kInterval)},
      [](Setup<Config>& setup) {
        CheckManager(setup.config);
        NoteFactor(setup.config.scale_factor, setup.notes);
        NoteWindow(setup.config.scale_window, setup.notes);
      });
}

}  // namespace dlsim::sim
