// SPDX-License-Identifier: Apache-2.0
// DynamicLossScaler of DeepSpeed, as the ZeRO optimizers use it, with a Python number as its scale,
// and their static scale. Sources: microsoft/DeepSpeed, deepspeed/runtime/fp16/loss_scaler.py and,
// for the steps that a static scale skips, deepspeed/runtime/zero/stage_1_and_2.py.
#include <string>
#include <tuple>

#include "sim/policies/policies.h"
#include "sim/policies/policy.h"
#include "sim/policies/python_number.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

// When clean steps make the scale grow.
enum class Growth : uint8_t {
  kSince_0_17_1,   // after scale_window steps that follow a clean one
  kBefore_0_17_1,  // after scale_window clean steps
};

struct DynamicLossScaler {
  struct Config {
    Growth growth = Growth::kSince_0_17_1;
    bool dynamic = true;      // false: overflows still skip their step
    PythonNumber init_scale;  // or the static loss_scale
    PythonNumber scale_factor;
    PythonNumber scale_window;
    PythonNumber min_scale;
    int64_t delayed_shift = 0;
    bool consecutive_hysteresis = false;
    bool raise_error_at_min_scale = true;
  };
  struct State {
    PythonNumber cur_scale;
    int64_t cur_iter = 0;
    int64_t last_overflow_iter = -1;
    int64_t cur_hysteresis = 0;
  };
  static State Start(const Config& config) {
    return {.cur_scale = config.init_scale, .cur_hysteresis = config.delayed_shift};
  }
  static double Scale(const State& state) { return state.cur_scale.ToDouble(); }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    if (!config.dynamic) return kAlwaysAlike;
    const int64_t first = config.growth == Growth::kBefore_0_17_1 ? 0 : 1;
    return config.scale_window.AlikeUntilMultiple(state.cur_iter - state.last_overflow_iter -
                                                  first);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"cur_scale", &State::cur_scale},
                      StateField{"cur_iter", &State::cur_iter},
                      StateField{"last_overflow_iter", &State::last_overflow_iter},
                      StateField{"cur_hysteresis", &State::cur_hysteresis}};
  }
};

using Config = DynamicLossScaler::Config;
using State = DynamicLossScaler::State;

constexpr const char* NameOfPolicy(Growth growth) {
  return growth == Growth::kSince_0_17_1 ? "deepspeed" : "deepspeed-0.16";
}

bool LowersScale(const Config& config, const State& state) {
  return config.delayed_shift == 1 || state.cur_hysteresis == 1;
}

// Where the original raises at an overflow. The common exception is not thrown: those who search
// for parameters meet it at every second step.
bool RaisesAtOverflow(const Config& config, const State& state) {
  return config.raise_error_at_min_scale && LowersScale(config, state) &&
         state.cur_scale == config.min_scale;
}

// The original logs scales as integers, which an infinite one is not.
void OnOverflow(const Config& config, State& state) {
  if (LowersScale(config, state)) {
    const PythonNumber lowered = Max(state.cur_scale / config.scale_factor, config.min_scale);
    CheckConvertsToInt(state.cur_scale);
    CheckConvertsToInt(lowered);
    state.cur_scale = lowered;
  } else {
    CheckConvertsToInt(state.cur_scale);
    state.cur_hysteresis -= 1;
  }
  state.last_overflow_iter = state.cur_iter;
}

bool Grows(const Config& config, const State& state) {
  const int64_t since = state.cur_iter - state.last_overflow_iter;
  if (config.growth == Growth::kBefore_0_17_1) return config.scale_window.Divides(since);
  return since > 1 && config.scale_window.Divides(since - 1);
}

void OnCleanStep(const Config& config, State& state) {
  if (config.consecutive_hysteresis) state.cur_hysteresis = config.delayed_shift;
  if (!Grows(config, state)) return;
  state.cur_hysteresis = config.delayed_shift;
  state.cur_scale = state.cur_scale * config.scale_factor;
}

Transition<State> DynamicLossScaler::Next(const Config& config, const State& state,
                                          const ScalerInput& input) {
  if (!config.dynamic) return {.next = state, .skip = input.overflow};
  if (input.overflow && RaisesAtOverflow(config, state)) {
    return {.next = state,
            .skip = true,
            .event = FatalEvent({"Exception",
                                 "Current loss scale already at minimum - cannot decrease scale "
                                 "anymore. Exiting run."})};
  }
  return UpdateAsPython(state, input, [&](State& next) {
    input.overflow ? OnOverflow(config, next) : OnCleanStep(config, next);
    next.cur_iter += 1;
  });
}

const std::vector<ParameterInfo>& DeepspeedParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"loss_scale", {"static_loss_scale"}, "0", "0: dynamic; else a scale that never changes"},
      {"init_scale",
       {"initial_scale", "initial_loss_scale"},
       "2^32",
       "loss scale of the first step; 2^16 by DeepSpeed's JSON configuration",
       kStart},
      {"scale_factor", {}, "2.0", "the scale is multiplied and divided by this", kFactor},
      {"scale_window",
       {"loss_scale_window"},
       "1000",
       "clean steps until the scale grows",
       kInterval},
      {"min_scale",
       {"min_loss_scale"},
       "1",
       "floor; an overflow at exactly this scale raises",
       kFloor},
      {"delayed_shift",
       {"hysteresis"},
       "1",
       "overflows until the scale falls; 2 by DeepSpeed's JSON configuration",
       kOverflows},
      {"consecutive_hysteresis", {}, "false", "true: each clean step restores delayed_shift"},
      {"raise_error_at_min_scale", {}, "true", "false: stay at min_scale and skip on"},
  };
  return kParameters;
}

void NoteHysteresis(const Config& config, std::vector<std::string>& notes) {
  if (config.delayed_shift < 1) {
    notes.push_back("delayed_shift below 1: overflows never lower the scale");
  } else if (config.delayed_shift > 1 && config.consecutive_hysteresis) {
    notes.push_back(
        "delayed_shift counts overflows in a row: one clean step restores it, and without one "
        "every overflow from number " +
        std::to_string(config.delayed_shift) + " on lowers the scale");
  } else if (config.delayed_shift > 1) {
    notes.push_back(
        "delayed_shift is restored only when the scale grows: overflows far apart add up, and "
        "from overflow " +
        std::to_string(config.delayed_shift) + " on each lowers the scale");
  }
}

std::vector<std::string> Notes(const Settings& settings, const Config& config) {
  if (!config.dynamic) return {kStaticSkips};
  std::vector<std::string> notes;
  if (!settings.Given("init_scale") && !settings.Given("delayed_shift")) {
    notes.push_back(
        std::string("these are the defaults of the class") +
        (config.growth == Growth::kSince_0_17_1 ? " before 0.17.1, which has none since" : "") +
        "; DeepSpeed's JSON configuration has init_scale 2^16 and delayed_shift (hysteresis) 2");
  }
  NoteHysteresis(config, notes);
  if (config.init_scale < config.min_scale) {
    notes.push_back("init_scale below min_scale: the first decrease raises the scale");
  }
  const PythonNumber zero;
  if (config.min_scale == zero && config.raise_error_at_min_scale) {
    notes.push_back("min_scale 0: no error before the scale has underflowed to 0");
  } else if (config.min_scale < zero) {
    notes.push_back("min_scale below 0: the scale can reach 0, without an error");
  }
  NoteFactor(config.scale_factor, notes);
  if (config.growth == Growth::kSince_0_17_1 && !(config.scale_factor == PythonNumber::Float(2))) {
    notes.push_back("scale_factor is not an argument of the class since 0.17.1: it is always 2");
  }
  (config.growth == Growth::kSince_0_17_1 ? NoteLaterGrowth : NoteWindow)(config.scale_window,
                                                                          notes);
  return notes;
}

template <Growth growth>
ConfiguredScaler MakeDeepspeed(const ParameterMap& given, std::string_view) {
  const Settings settings{NameOfPolicy(growth), DeepspeedParameters(), given};
  const PythonNumber init_scale = ReadPositive(settings, "init_scale");
  const PythonNumber static_scale = ReadStaticScale(settings);
  const bool dynamic = static_scale == PythonNumber();
  const Config config = {.growth = growth,
                         .dynamic = dynamic,
                         .init_scale = dynamic ? init_scale : static_scale,
                         .scale_factor = ReadPythonNumber(settings, "scale_factor"),
                         .scale_window = ReadPythonNumber(settings, "scale_window"),
                         .min_scale = ReadPythonNumber(settings, "min_scale"),
                         .delayed_shift = ReadCount(settings, "delayed_shift"),
                         .consecutive_hysteresis = settings.Bool("consecutive_hysteresis"),
                         .raise_error_at_min_scale = settings.Bool("raise_error_at_min_scale")};
  return {.scaler = LossScaler::Make<DynamicLossScaler>(config),
          .parameters = {{"loss_scale", FieldValue(static_scale)},
                         {"init_scale", FieldValue(init_scale)},
                         {"scale_factor", FieldValue(config.scale_factor)},
                         {"scale_window", FieldValue(config.scale_window)},
                         {"min_scale", FieldValue(config.min_scale)},
                         {"delayed_shift", config.delayed_shift},
                         {"consecutive_hysteresis", config.consecutive_hysteresis},
                         {"raise_error_at_min_scale", config.raise_error_at_min_scale}},
          .notes = Notes(settings, config)};
}

template <Growth growth>
PolicyInfo PolicyOfGrowth(const char* summary) {
  return {.name = NameOfPolicy(growth),
          .aliases = {},
          .summary = summary,
          .rules = {.finite_test = growth == Growth::kSince_0_17_1 ? FiniteTest::kScaledNorm
                                                                   : FiniteTest::kSum},
          .parameters = DeepspeedParameters(),
          .make = MakeDeepspeed<growth>};
}

}  // namespace

PolicyInfo DeepSpeedPolicy() {
  return PolicyOfGrowth<Growth::kSince_0_17_1>(
      "DeepSpeed's DynamicLossScaler (ZeRO); an overflow at min_scale raises");
}

PolicyInfo DeepSpeed016Policy() {
  return PolicyOfGrowth<Growth::kBefore_0_17_1>(
      "the same before DeepSpeed 0.17.1: each growth comes one step earlier");
}

}  // namespace dlsim::sim
