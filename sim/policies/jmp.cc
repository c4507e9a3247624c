// SPDX-License-Identifier: Apache-2.0
// DynamicLossScale of jmp, and DynamicLossScaler of mindspore.amp, which has the same rule with the
// floor 1; both in float32. Sources: deepmind/jmp, jmp/_src/loss_scale.py, and MindSpore,
// mindspore/python/mindspore/amp.py with _checkparam.py.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "sim/base/quantity.h"
#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

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
  static double Scale(const State& state) { return state.loss_scale; }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return AlikeUntil(config.period, state.counter);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"loss_scale", &State::loss_scale},
                      StateField{"counter", &State::counter}};
  }
};

// Python's %: the remainder has the sign of the divisor. By zero it is 0, as in NumPy.
int32_t Remainder(int64_t dividend, int64_t divisor) {
  if (divisor == 0) return 0;
  const int64_t remainder = dividend % divisor;
  const bool adjust = remainder != 0 && (remainder < 0) != (divisor < 0);
  return static_cast<int32_t>(adjust ? remainder + divisor : remainder);
}

// std::max keeps a NaN that is its first argument, as jnp.maximum does.
Transition<DynamicLossScale::State> DynamicLossScale::Next(const Config& config, const State& state,
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

const std::vector<ParameterInfo>& JmpParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"loss_scale",
       {"init_scale", "initial_loss_scale"},
       "2^15",
       "loss scale of the first step",
       kStart},
      {"period", {}, "2000", "consecutive clean steps until the scale grows", kInterval},
      {"factor", {}, "2", "divides the scale on an overflow and multiplies it on growth", kFactor},
      {"min_loss_scale",
       {},
       "1",
       "floor; 1 again after each jit or tree_map of the real jmp",
       kFloor},
  };
  return kParameters;
}

const std::vector<ParameterInfo>& MindsporeParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"scale_value",
       {"init_scale", "initial_loss_scale"},
       "2^24",
       "loss scale of the first step; below 1 is refused",
       kStart},
      {"scale_factor",
       {},
       "2",
       "divides the scale on an overflow and multiplies it on growth",
       kFactor},
      {"scale_window", {}, "2000", "consecutive clean steps until the scale grows", kInterval},
  };
  return kParameters;
}

void NoteStart(std::string_view name, const DynamicLossScale::Config& config,
               std::vector<std::string>& notes) {
  if (std::isinf(config.loss_scale)) {
    notes.push_back(std::string(name).append(" is infinite as float32 and can never come back"));
  }
}

std::vector<std::string> JmpNotes(const DynamicLossScale::Config& config) {
  std::vector<std::string> notes;
  NoteStart("loss_scale", config, notes);
  NoteDivisor("factor", config.factor, notes);
  if (config.period < 1) notes.push_back("period below 1: the scale never grows");
  if (config.min_loss_scale != 1) {
    notes.push_back(
        "the real min_loss_scale is 1 again after a jit or tree_map boundary, because tree_flatten "
        "drops it");
  }
  if (config.loss_scale < config.min_loss_scale) {
    notes.push_back("loss_scale below min_loss_scale: an overflow raises it to min_loss_scale");
  }
  return notes;
}

ConfiguredScaler MakeJmp(const ParameterMap& given, std::string_view) {
  const Settings settings{"jmp", JmpParameters(), given};
  const double loss_scale = settings.Number("loss_scale");
  const double factor = settings.Number("factor");
  const double min_loss_scale = settings.Number("min_loss_scale");
  const DynamicLossScale::Config config = {.loss_scale = static_cast<float>(loss_scale),
                                           .period = Int32(settings, "period"),
                                           .factor = static_cast<float>(factor),
                                           .min_loss_scale = static_cast<float>(min_loss_scale)};
  return {.scaler = LossScaler::Make<DynamicLossScale>(config),
          .parameters = {{"loss_scale", loss_scale},
                         {"period", int64_t{config.period}},
                         {"factor", factor},
                         {"min_loss_scale", min_loss_scale}},
          .notes = JmpNotes(config)};
}

void CheckPositive(const char* name, int64_t value, const std::vector<NamedValue>& parameters) {
  if (value > 0) return;
  throw PolicyRefusal{"ValueError",
                      std::string("The '") + name + "' must be int and must > 0, but got '" +
                          std::to_string(value) + "' with type 'int'.",
                      parameters};
}

// Python prints an int without a point.
std::string PythonText(const Settings& settings, std::string_view name) {
  const std::string text = settings.Text(name);
  const bool integer = text.find_first_not_of("+-0123456789") == std::string::npos;
  return integer ? std::to_string(settings.Integer(name)) : PythonRepr(settings.Number(name));
}

ConfiguredScaler MakeMindspore(const ParameterMap& given, std::string_view) {
  const Settings settings{"mindspore-amp", MindsporeParameters(), given};
  const double scale_value = settings.Number("scale_value");
  const int32_t scale_factor = Int32(settings, "scale_factor");
  const int32_t scale_window = Int32(settings, "scale_window");
  const std::vector<NamedValue> parameters = {{"scale_value", scale_value},
                                              {"scale_factor", int64_t{scale_factor}},
                                              {"scale_window", int64_t{scale_window}}};
  if (scale_value < 1.0) {
    throw PolicyRefusal{
        "ValueError",
        "The argument 'scale_value' must be > 1, but got " + PythonText(settings, "scale_value"),
        parameters};
  }
  CheckPositive("scale_window", scale_window, parameters);
  CheckPositive("scale_factor", scale_factor, parameters);
  const DynamicLossScale::Config config = {.loss_scale = static_cast<float>(scale_value),
                                           .period = scale_window,
                                           .factor = static_cast<float>(scale_factor),
                                           .min_loss_scale = 1};
  std::vector<std::string> notes;
  NoteStart("scale_value", config, notes);
  NoteDivisor("scale_factor", config.factor, notes);
  return {.scaler = LossScaler::Make<DynamicLossScale>(config),
          .parameters = parameters,
          .notes = std::move(notes)};
}

}  // namespace

PolicyInfo JmpPolicy() {
  return {.name = "jmp",
          .aliases = {},
          .summary = "DynamicLossScale of jmp; keeps its scale finite, floor 1",
          .rules = {.finite_test = FiniteTest::kUnscaledElementwise},
          .parameters = JmpParameters(),
          .make = MakeJmp};
}

PolicyInfo MindsporeAmpPolicy() {
  return {.name = "mindspore-amp",
          .aliases = {"mindspore_amp_dynamic"},
          .summary = "DynamicLossScaler of mindspore.amp: jmp's rule with the floor 1",
          .rules = {.finite_test = FiniteTest::kUnscaledElementwise},
          .parameters = MindsporeParameters(),
          .make = MakeMindspore,
          .checkpoint = CheckpointContent::kNothing};
}

}  // namespace dlsim::sim
