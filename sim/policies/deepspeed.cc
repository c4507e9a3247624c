// SPDX-License-Identifier: Apache-2.0
// DynamicLossScaler of apex.fp16_utils and the two scalers of DeepSpeed that grew out of it, with
// a Python number as their scale.
#include <string>
#include <tuple>

#include "sim/policies/policy.h"
#include "sim/policies/python_number.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct IterationState {
  PythonNumber cur_scale;
  int64_t cur_iter = 0;
  int64_t last_overflow_iter = -1;
};

constexpr std::tuple kIterationFields = {
    StateField{"cur_scale", &IterationState::cur_scale},
    StateField{"cur_iter", &IterationState::cur_iter},
    StateField{"last_overflow_iter", &IterationState::last_overflow_iter}};

// DynamicLossScaler of apex.fp16_utils. Source: NVIDIA/apex, apex/fp16_utils/loss_scaler.py.

const PythonNumber& Floor() {
  static const PythonNumber kOne = PythonNumber::Int(1);
  return kOne;
}

struct Fp16UtilsLossScaler {
  struct Config {
    PythonNumber init_scale;
    PythonNumber scale_factor;
    PythonNumber scale_window;
  };
  using State = IterationState;
  static State Start(const Config& config) { return {.cur_scale = config.init_scale}; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    return UpdateAsPython(state, input, [&](State& next) {
      if (input.overflow) {
        next.cur_scale = Max(next.cur_scale / config.scale_factor, Floor());
        next.last_overflow_iter = next.cur_iter;
      } else if (config.scale_window.Divides(next.cur_iter - next.last_overflow_iter)) {
        next.cur_scale = next.cur_scale * config.scale_factor;
      }
      next.cur_iter += 1;
    });
  }
  static constexpr auto kFields = kIterationFields;
};

}  // namespace

PolicyInfo ApexFp16UtilsPolicy() {
  using Config = Fp16UtilsLossScaler::Config;
  return PolicyOf<Fp16UtilsLossScaler>(
      {.name = "apex-fp16-utils",
       .aliases = {"apex_fp16_utils"},
       .summary = "DynamicLossScaler of apex.fp16_utils; never below 1, no ceiling",
       .rules = {.finite_test = FiniteTest::kSum}},
      {Row(&Config::init_scale, "init_scale", {"initial_loss_scale"}, "2^32",
           "loss scale of the first step", kStart),
       Row(&Config::scale_factor, "scale_factor", {}, "2.0",
           "the scale is multiplied and divided by this", kFactor),
       Row(&Config::scale_window, "scale_window", {"loss_scale_window"}, "1000",
           "clean steps until the scale grows", kInterval)},
      [](Setup<Config>& setup) {
        const Config& config = setup.config;
        setup.settings.RequirePositive("init_scale", config.init_scale.ToDouble());
        setup.NoteIf(config.init_scale < Floor(),
                     "init_scale below 1: the first overflow raises the scale to 1");
        NoteFactor(config.scale_factor, setup.notes);
        NoteWindow(config.scale_window, setup.notes);
      });
}

// DynamicLossScaler of DeepSpeed, as the ZeRO optimizers use it, and their static scale.
// Sources: microsoft/DeepSpeed, deepspeed/runtime/fp16/loss_scaler.py and, for the steps that a
// static scale skips, deepspeed/runtime/zero/stage_1_and_2.py.

namespace {

// When clean steps make the scale grow.
enum class Growth : uint8_t {
  kSince_0_17_1,   // after scale_window steps that follow a clean one
  kBefore_0_17_1,  // after scale_window clean steps
};

// What both of DeepSpeed's have.
struct StaticOrDynamic {
  PythonNumber loss_scale;
  PythonNumber init_scale;
  PythonNumber scale_window;
  PythonNumber min_scale;
  bool dynamic = true;  // loss_scale is 0; else it stays, and overflows still skip their step

  const PythonNumber& first_scale() const { return dynamic ? init_scale : loss_scale; }
};

// Returns whether the scale is dynamic.
bool CheckScales(const Settings& settings, StaticOrDynamic& config) {
  settings.RequirePositive("init_scale", config.init_scale.ToDouble());
  const double loss_scale = config.loss_scale.ToDouble();
  if (!(loss_scale >= 0)) {
    settings.Refuse("loss_scale", "not a loss scale", "a positive number, or 0");
  }
  return config.dynamic = loss_scale == 0;
}

// The note on a static scale.
constexpr const char* kStaticSkips = "the scale never changes, but overflows skip their step";

// Notes growth that counts the steps after a clean one.
void NoteLaterGrowth(const PythonNumber& scale_window, std::vector<std::string>& notes) {
  notes.push_back(
      scale_window == PythonNumber()
          ? "scale_window 0: the second clean step in a row raises ZeroDivisionError"
          : "the scale first grows after scale_window + 1 clean steps, then every scale_window");
}

struct DynamicLossScaler {
  struct Config : StaticOrDynamic {
    Growth growth = Growth::kSince_0_17_1;
    PythonNumber scale_factor;
    int64_t delayed_shift = 0;
    bool consecutive_hysteresis = false;
    bool raise_error_at_min_scale = true;
  };
  struct State : IterationState {
    int64_t cur_hysteresis = 0;
  };
  static State Start(const Config& config) {
    return {{.cur_scale = config.first_scale()}, config.delayed_shift};
  }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    if (!config.dynamic) return {.next = state, .skip = input.overflow};
    const bool lowers = config.delayed_shift == 1 || state.cur_hysteresis == 1;
    const bool raises =
        config.raise_error_at_min_scale && lowers && state.cur_scale == config.min_scale;
    // The common exception is not thrown: those who search for parameters meet it at every second
    // step.
    if (input.overflow && raises) {
      return {.next = state,
              .skip = true,
              .event = FatalEvent("Exception",
                                  "Current loss scale already at minimum - cannot decrease scale "
                                  "anymore. Exiting run.")};
    }
    return UpdateAsPython(state, input, [&](State& next) {
      if (input.overflow) {
        const PythonNumber lowered =
            lowers ? Max(next.cur_scale / config.scale_factor, config.min_scale) : next.cur_scale;
        // The original logs scales as integers, which an infinite one is not.
        CheckConvertsToInt(next.cur_scale);
        CheckConvertsToInt(lowered);
        next.cur_scale = lowered;
        next.cur_hysteresis -= lowers ? 0 : 1;
        next.last_overflow_iter = next.cur_iter;
      } else {
        if (config.consecutive_hysteresis) next.cur_hysteresis = config.delayed_shift;
        if (Grows(config, next)) {
          next.cur_hysteresis = config.delayed_shift;
          next.cur_scale = next.cur_scale * config.scale_factor;
        }
      }
      next.cur_iter += 1;
    });
  }
  static bool Grows(const Config& config, const State& state) {
    const int64_t since = state.cur_iter - state.last_overflow_iter;
    if (config.growth == Growth::kBefore_0_17_1) return config.scale_window.Divides(since);
    return since > 1 && config.scale_window.Divides(since - 1);
  }
  static constexpr auto kFields = std::tuple_cat(
      kIterationFields, std::tuple{StateField{"cur_hysteresis", &State::cur_hysteresis}});
};

using DeepSpeedConfig = DynamicLossScaler::Config;

void NoteHysteresis(Setup<DeepSpeedConfig>& setup) {
  const int64_t shift = setup.config.delayed_shift;
  if (shift < 1) {
    setup.Note("delayed_shift below 1: overflows never lower the scale");
  } else if (shift > 1 && setup.config.consecutive_hysteresis) {
    setup.Note(
        "delayed_shift counts overflows in a row: one clean step restores it, and without one "
        "every overflow from number " +
        std::to_string(shift) + " on lowers the scale");
  } else if (shift > 1) {
    setup.Note(
        "delayed_shift is restored only when the scale grows: overflows far apart add up, and "
        "from overflow " +
        std::to_string(shift) + " on each lowers the scale");
  }
}

void FinishDynamic(Setup<DeepSpeedConfig>& setup) {
  DeepSpeedConfig& config = setup.config;
  setup.settings.RequireCount("delayed_shift", config.delayed_shift);
  if (!CheckScales(setup.settings, config)) return setup.Note(kStaticSkips);
  const bool later = config.growth == Growth::kSince_0_17_1;
  setup.NoteIf(!setup.settings.Given("init_scale") && !setup.settings.Given("delayed_shift"),
               std::string("these are the defaults of the class") +
                   (later ? " before 0.17.1, which has none since" : "") +
                   "; DeepSpeed's JSON configuration has init_scale 2^16 and delayed_shift "
                   "(hysteresis) 2");
  NoteHysteresis(setup);
  setup.NoteIf(config.init_scale < config.min_scale,
               "init_scale below min_scale: the first decrease raises the scale");
  const PythonNumber zero;
  setup.NoteIf(config.min_scale == zero && config.raise_error_at_min_scale,
               "min_scale 0: no error before the scale has underflowed to 0");
  setup.NoteIf(config.min_scale < zero,
               "min_scale below 0: the scale can reach 0, without an error");
  NoteFactor(config.scale_factor, setup.notes);
  setup.NoteIf(later && !(config.scale_factor == PythonNumber::Float(2)),
               "scale_factor is not an argument of the class since 0.17.1: it is always 2");
  (later ? NoteLaterGrowth : NoteWindow)(config.scale_window, setup.notes);
}

PolicyInfo PolicyOfDeepSpeed(PolicyInfo info, Growth growth) {
  using Config = DeepSpeedConfig;
  return PolicyOf<DynamicLossScaler>(
      std::move(info),
      {Row(&Config::loss_scale, "loss_scale", {"static_loss_scale"}, "0",
           "0: dynamic; else a scale that never changes"),
       Row(&Config::init_scale, "init_scale", {"initial_scale", "initial_loss_scale"}, "2^32",
           "loss scale of the first step; 2^16 by DeepSpeed's JSON configuration", kStart),
       Row(&Config::scale_factor, "scale_factor", {}, "2.0",
           "the scale is multiplied and divided by this", kFactor),
       Row(&Config::scale_window, "scale_window", {"loss_scale_window"}, "1000",
           "clean steps until the scale grows", kInterval),
       Row(&Config::min_scale, "min_scale", {"min_loss_scale"}, "1",
           "floor; an overflow at exactly this scale raises", kFloor),
       Row(&Config::delayed_shift, "delayed_shift", {"hysteresis"}, "1",
           "overflows until the scale falls; 2 by DeepSpeed's JSON configuration", kOverflows),
       Row(&Config::consecutive_hysteresis, "consecutive_hysteresis", {}, "false",
           "true: each clean step restores delayed_shift"),
       Row(&Config::raise_error_at_min_scale, "raise_error_at_min_scale", {}, "true",
           "false: stay at min_scale and skip on")},
      [growth](Setup<DeepSpeedConfig>& setup) {
        setup.config.growth = growth;
        FinishDynamic(setup);
      });
}

}  // namespace

PolicyInfo DeepSpeedPolicy() {
  return PolicyOfDeepSpeed(
      {.name = "deepspeed",
       .summary = "DeepSpeed's DynamicLossScaler (ZeRO); an overflow at min_scale raises",
       .rules = {.finite_test = FiniteTest::kScaledNorm}},
      Growth::kSince_0_17_1);
}

PolicyInfo DeepSpeed016Policy() {
  return PolicyOfDeepSpeed(
      {.name = "deepspeed-0.16",
       .summary = "the same before DeepSpeed 0.17.1: each growth comes one step earlier",
       .rules = {.finite_test = FiniteTest::kSum}},
      Growth::kBefore_0_17_1);
}

// FP16_Optimizer of DeepSpeed without ZeRO, which has a rule of its own.
// Source: microsoft/DeepSpeed, deepspeed/runtime/fp16/fused_optimizer.py.

namespace {

// A float since 0.18.6; the integer before differs only in what becomes of integers above 2^1023.
const PythonNumber& ScaleFactor() {
  static const PythonNumber kTwo = PythonNumber::Float(2);
  return kTwo;
}

struct Fp16Optimizer {
  using Config = StaticOrDynamic;
  using State = IterationState;
  static State Start(const Config& config) { return {.cur_scale = config.first_scale()}; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    return UpdateAsPython(state, input, [&](State& next) {
      if (!config.dynamic) {
        // Only the count of steps goes on.
      } else if (input.overflow) {
        next.cur_scale = Max(next.cur_scale / ScaleFactor(), config.min_scale);
        next.last_overflow_iter = next.cur_iter;
      } else {
        const int64_t stable_interval = next.cur_iter - next.last_overflow_iter - 1;
        if (stable_interval > 0 && config.scale_window.Divides(stable_interval)) {
          next.cur_scale = next.cur_scale * ScaleFactor();
        }
      }
      next.cur_iter += 1;
    });
  }
  static constexpr auto kFields = kIterationFields;
};

}  // namespace

PolicyInfo DeepSpeedFp16OptimizerPolicy() {
  using Config = StaticOrDynamic;
  return PolicyOf<Fp16Optimizer>(
      {.name = "deepspeed-fp16-optimizer",
       .aliases = {"deepspeed_fp16_optimizer"},
       .summary = "DeepSpeed's FP16_Optimizer (no ZeRO); first growth one step later",
       .rules = {.finite_test = FiniteTest::kScaledNorm}},
      {Row(&Config::loss_scale, "loss_scale", {"static_loss_scale"}, "0",
           "0: dynamic; else a scale that never changes"),
       Row(&Config::init_scale, "init_scale", {"initial_scale", "initial_loss_scale"}, "2^16",
           "scale of the first step", kStart),
       Row(&Config::scale_window, "scale_window", {"loss_scale_window"}, "1000",
           "clean steps until the scale doubles again", kInterval),
       Row(&Config::min_scale, "min_scale", {"min_loss_scale"}, "1", "floor", kFloor)},
      [](Setup<Config>& setup) {
        Config& config = setup.config;
        if (!CheckScales(setup.settings, config)) return setup.Note(kStaticSkips);
        NoteLaterGrowth(config.scale_window, setup.notes);
        setup.NoteIf(config.init_scale < config.min_scale,
                     "init_scale below min_scale: the first overflow raises the scale");
        setup.NoteIf(!(PythonNumber() < config.min_scale),
                     "min_scale of 0 or less: the scale can reach 0 and never returns");
      });
}

}  // namespace dlsim::sim
