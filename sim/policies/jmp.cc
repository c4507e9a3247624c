// SPDX-License-Identifier: Apache-2.0
// DynamicLossScale of jmp, and DynamicLossScaler of mindspore.amp, which has the same rule with the
// floor 1; both in float32. Sources: deepmind/jmp, jmp/_src/loss_scale.py, and MindSpore,
// mindspore/python/mindspore/amp.py with _checkparam.py.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "sim/base/quantity.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

// Python's %: the remainder has the sign of the divisor. By zero it is 0, as in NumPy.
int32_t Remainder(int64_t dividend, int64_t divisor) {
  if (divisor == 0) return 0;
  const int64_t remainder = dividend % divisor;
  const bool adjust = remainder != 0 && (remainder < 0) != (divisor < 0);
  return static_cast<int32_t>(adjust ? remainder + divisor : remainder);
}

struct DynamicLossScale {
  struct Config {
    float loss_scale = 0;
    int32_t period = 0;
    float factor = 2;
    float min_loss_scale = 1;
  };
  struct State {
    float loss_scale = 0;
    int32_t counter = 0;
  };
  static State Start(const Config& config) { return {config.loss_scale, 0}; }
  // std::max keeps a NaN that is its first argument, as jnp.maximum does.
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    if (input.overflow) {
      return {.next = {std::max(state.loss_scale / config.factor, config.min_loss_scale), 0},
              .skip = true};
    }
    const int64_t counter = state.counter;
    State next = {state.loss_scale, Remainder(counter + 1, config.period)};
    const float grown = state.loss_scale * config.factor;
    if (counter == int64_t{config.period} - 1 && std::isfinite(grown)) next.loss_scale = grown;
    return {.next = next};
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"loss_scale", &State::loss_scale},
                      StateField{"counter", &State::counter}};
  }
};

void NoteStart(std::string_view name, float scale, std::vector<std::string>& notes) {
  if (!std::isinf(scale)) return;
  notes.push_back(std::string(name).append(" is infinite as float32 and can never come back"));
}

}  // namespace

PolicyInfo JmpPolicy() {
  using Config = DynamicLossScale::Config;
  using Row = Parameter<Config>;
  return PolicyOf<DynamicLossScale>(
      {.name = "jmp",
       .summary = "DynamicLossScale of jmp; keeps its scale finite, floor 1",
       .rules = {.finite_test = FiniteTest::kUnscaledElementwise}},
      {Row(&Config::loss_scale, "loss_scale", {"init_scale", "initial_loss_scale"}, "2^15",
           "loss scale of the first step", kStart),
       Row(&Config::period, "period", {}, "2000", "consecutive clean steps until the scale grows",
           kInterval),
       Row(&Config::factor, "factor", {}, "2",
           "divides the scale on an overflow and multiplies it on growth", kFactor),
       Row(&Config::min_loss_scale, "min_loss_scale", {}, "1",
           "floor; 1 again after each jit or tree_map of the real jmp", kFloor)},
      [](Setup<Config>& setup) {
        const Config& config = setup.config;
        NoteStart("loss_scale", config.loss_scale, setup.notes);
        NoteDivisor("factor", config.factor, setup.notes);
        setup.NoteIf(config.period < 1, "period below 1: the scale never grows");
        setup.NoteIf(config.min_loss_scale != 1,
                     "the real min_loss_scale is 1 again after a jit or tree_map boundary, because "
                     "tree_flatten drops it");
        setup.NoteIf(config.loss_scale < config.min_loss_scale,
                     "loss_scale below min_loss_scale: an overflow raises it to min_loss_scale");
      });
}

// DynamicLossScaler of mindspore.amp.

namespace {

struct AmpScaler : DynamicLossScale {
  struct Config : DynamicLossScale::Config {
    double scale_value = 0;
    int32_t scale_factor = 0;
  };
};

void CheckPositive(const char* name, int64_t value) {
  if (value > 0) return;
  throw PolicyRefusal{"ValueError", std::string("The '") + name +
                                        "' must be int and must > 0, but got '" +
                                        std::to_string(value) + "' with type 'int'."};
}

// Python prints an int without a point.
std::string PythonText(const Settings& settings, std::string_view name) {
  const std::string text = settings.Text(name);
  const bool integer = text.find_first_not_of("+-0123456789") == std::string::npos;
  return integer ? std::to_string(settings.Integer(name)) : PythonRepr(settings.Number(name));
}

}  // namespace

PolicyInfo MindsporeAmpPolicy() {
  using Config = AmpScaler::Config;
  using Row = Parameter<Config>;
  return PolicyOf<AmpScaler>(
      {.name = "mindspore-amp",
       .aliases = {"mindspore_amp_dynamic"},
       .summary = "DynamicLossScaler of mindspore.amp: jmp's rule with the floor 1",
       .rules = {.finite_test = FiniteTest::kUnscaledElementwise},
       .checkpoint = Kept::kNothing},
      {Row(&Config::scale_value, "scale_value", {"init_scale", "initial_loss_scale"}, "2^24",
           "loss scale of the first step; below 1 is refused", kStart),
       Row(&Config::scale_factor, "scale_factor", {}, "2",
           "divides the scale on an overflow and multiplies it on growth", kFactor),
       Row(&Config::period, "scale_window", {}, "2000",
           "consecutive clean steps until the scale grows", kInterval)},
      [](Setup<Config>& setup) {
        Config& config = setup.config;
        if (config.scale_value < 1.0) {
          throw PolicyRefusal{"ValueError", "The argument 'scale_value' must be > 1, but got " +
                                                PythonText(setup.settings, "scale_value")};
        }
        CheckPositive("scale_window", config.period);
        CheckPositive("scale_factor", config.scale_factor);
        config.loss_scale = static_cast<float>(config.scale_value);
        config.factor = static_cast<float>(config.scale_factor);
        NoteStart("scale_value", config.loss_scale, setup.notes);
        NoteDivisor("scale_factor", config.factor, setup.notes);
      });
}

}  // namespace dlsim::sim
