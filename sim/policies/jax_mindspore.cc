// SPDX-License-Identifier: Apache-2.0
// The scalers of flax and jmp, and those of MindSpore, whose mindspore.amp has jmp's rule; all but
// the last in float32.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>

#include "sim/base/quantity.h"
#include "sim/policies/policy.h"
#include "sim/policies/python_number.h"

namespace dlsim::sim {

// DynamicScale of flax: saturating. Source: google/flax, flax/training/dynamic_scale.py.

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
  static constexpr std::tuple kFields = {StateField{"scale", &State::scale},
                                         StateField{"fin_steps", &State::fin_steps}};
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

// DynamicLossScale of jmp, and DynamicLossScaler of mindspore.amp, which has the same rule with the
// floor 1. Sources: deepmind/jmp, jmp/_src/loss_scale.py, and MindSpore,
// mindspore/python/mindspore/amp.py with _checkparam.py.

namespace {

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
  static constexpr std::tuple kFields = {StateField{"loss_scale", &State::loss_scale},
                                         StateField{"counter", &State::counter}};
};

void NoteStart(std::string_view name, float scale, std::vector<std::string>& notes) {
  if (!std::isinf(scale)) return;
  notes.push_back(std::string(name).append(" is infinite as float32 and can never come back"));
}

}  // namespace

PolicyInfo JmpPolicy() {
  using Config = DynamicLossScale::Config;
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

// The other scalers of MindSpore: DynamicLossScaleUpdateCell, with counters in int32, and
// DynamicLossScaleManager, updated on the host, with a Python number as its scale. Sources:
// MindSpore, mindspore/python/mindspore/nn/wrap/loss_scale.py and train/loss_scale_manager.py.

namespace {

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
  static constexpr std::tuple kFields = {
      StateField{"scale_sense", &State::scale_sense}, StateField{"cur_iter", &State::cur_iter},
      StateField{"last_overflow_iter", &State::last_overflow_iter}};
};

}  // namespace

PolicyInfo MindsporeCellPolicy() {
  using Config = UpdateCell::Config;
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
  static constexpr std::tuple kFields = {
      StateField{"loss_scale", &State::loss_scale}, StateField{"cur_iter", &State::cur_iter},
      StateField{"last_overflow_iter", &State::last_overflow_iter},
      StateField{"bad_step", &State::bad_step}};
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
