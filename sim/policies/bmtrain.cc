// SPDX-License-Identifier: Apache-2.0
// OptimManager of BMTrain 1.0, with a Python number as its scale.
// Source: OpenBMB/BMTrain, bmtrain/optim/optim_manager.py.
#include <limits>
#include <tuple>

#include "sim/policies/policy.h"
#include "sim/policies/python_number.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

// Infinite if there is none.
struct Limit {
  PythonNumber value;
};

ShownValue ReadParameter(const Settings& settings, std::string_view name, Limit& into) {
  if (settings.OptionalNumber(name)) return ReadParameter(settings, name, into.value);
  into.value = PythonNumber::Float(std::numeric_limits<double>::infinity());
  return "none";
}

struct OptimManager {
  struct Config {
    PythonNumber loss_scale;
    PythonNumber loss_scale_factor;
    int64_t loss_scale_steps = 0;
    PythonNumber min_loss_scale;
    Limit max_loss_scale;
  };
  struct State {
    PythonNumber loss_scale;
    int64_t steps_since_last_scale = 0;
  };
  static State Start(const Config& config) { return {.loss_scale = config.loss_scale}; }
  // The limits are looked at before a change, which may go beyond them. An overflow at the floor
  // does not begin a new count.
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    return UpdateAsPython(state, input, [&](State& next) {
      // The loss is multiplied by the scale divided by the number of ranks, which may raise.
      static_cast<void>(state.loss_scale / PythonNumber::Int(1));
      if (input.overflow) {
        if (!(config.min_loss_scale < state.loss_scale)) return;
        next = {.loss_scale = state.loss_scale / config.loss_scale_factor};
        return;
      }
      next.steps_since_last_scale += 1;
      const bool grows = next.steps_since_last_scale >= config.loss_scale_steps &&
                         state.loss_scale < config.max_loss_scale.value;
      if (grows) next = {.loss_scale = state.loss_scale * config.loss_scale_factor};
    });
  }
  static constexpr std::tuple kFields = {
      StateField{"loss_scale", &State::loss_scale},
      StateField{"steps_since_last_scale", &State::steps_since_last_scale}};
};

}  // namespace

PolicyInfo BmtrainPolicy() {
  using Config = OptimManager::Config;
  return PolicyOf<OptimManager>(
      {.name = "bmtrain",
       .summary = "BMTrain's OptimManager; its checkpoint keeps only the scale",
       .checkpoint = Kept::kScale},
      {Row(&Config::loss_scale, "loss_scale", {"init_scale", "initial_loss_scale"}, "1024",
           "loss scale of the first step; the original's None is static with 1", kStart),
       Row(&Config::loss_scale_factor, "loss_scale_factor", {}, "2",
           "the scale is multiplied and divided by this", kFactor),
       Row(&Config::loss_scale_steps, "loss_scale_steps", {}, "1024",
           "clean steps until the scale grows", kInterval),
       Row(&Config::min_loss_scale, "min_loss_scale", {}, "1", "only a scale above this falls",
           kFloor),
       Row(&Config::max_loss_scale, "max_loss_scale", {}, "none", "only a scale below this grows",
           kCeiling)},
      [](Setup<Config>& setup) {
        setup.settings.RequirePositive("loss_scale", setup.config.loss_scale.ToDouble());
        setup.settings.RequireCount("loss_scale_steps", setup.config.loss_scale_steps);
        // A factor of 1 or less is turned round.
        const PythonNumber one = PythonNumber::Int(1);
        PythonNumber& factor = setup.config.loss_scale_factor;
        try {
          if (!(one < factor)) factor = one / factor;
        } catch (const PythonError& error) {
          throw PolicyRefusal{error.type, error.message};
        }
        setup.Note(
            "the limits are looked at before a change: the scale can end one loss_scale_factor "
            "beyond them");
        setup.NoteIf(factor == one, "loss_scale_factor 1: the scale does not change");
      });
}

}  // namespace dlsim::sim
