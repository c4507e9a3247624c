// SPDX-License-Identifier: Apache-2.0
// DynamicLossScaler of apex.fp16_utils, with a Python number as its scale.
// Source: NVIDIA/apex, apex/fp16_utils/loss_scaler.py.
#include "sim/policies/policies.h"
#include "sim/policies/policy.h"
#include "sim/policies/python_number.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct Fp16UtilsLossScaler {
  struct Config {
    PythonNumber init_scale;
    PythonNumber scale_factor;
    PythonNumber scale_window;
  };
  using State = IterationState;
  static State Start(const Config& config) { return {.cur_scale = config.init_scale}; }
  static double Scale(const State& state) { return state.cur_scale.ToDouble(); }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return config.scale_window.AlikeUntilMultiple(state.cur_iter - state.last_overflow_iter);
  }
  static constexpr auto Fields() { return State::Fields(); }
};

const PythonNumber& Floor() {
  static const PythonNumber kOne = PythonNumber::Int(1);
  return kOne;
}

Transition<Fp16UtilsLossScaler::State> Fp16UtilsLossScaler::Next(const Config& config,
                                                                 const State& state,
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

const std::vector<ParameterInfo>& ApexFp16UtilsParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"init_scale", {"initial_loss_scale"}, "2^32", "loss scale of the first step", kStart},
      {"scale_factor", {}, "2.0", "the scale is multiplied and divided by this", kFactor},
      {"scale_window",
       {"loss_scale_window"},
       "1000",
       "clean steps until the scale grows",
       kInterval},
  };
  return kParameters;
}

ConfiguredScaler MakeApexFp16Utils(const ParameterMap& given, std::string_view) {
  const Settings settings{"apex-fp16-utils", ApexFp16UtilsParameters(), given};
  const Fp16UtilsLossScaler::Config config = {
      .init_scale = ReadPositive(settings, "init_scale"),
      .scale_factor = ReadPythonNumber(settings, "scale_factor"),
      .scale_window = ReadPythonNumber(settings, "scale_window")};
  std::vector<std::string> notes;
  if (config.init_scale < Floor()) {
    notes.push_back("init_scale below 1: the first overflow raises the scale to 1");
  }
  NoteFactor(config.scale_factor, notes);
  NoteWindow(config.scale_window, notes);
  return {.scaler = LossScaler::Make<Fp16UtilsLossScaler>(config),
          .parameters = {{"init_scale", FieldValue(config.init_scale)},
                         {"scale_factor", FieldValue(config.scale_factor)},
                         {"scale_window", FieldValue(config.scale_window)}},
          .notes = notes};
}

}  // namespace

PolicyInfo ApexFp16UtilsPolicy() {
  return {.name = "apex-fp16-utils",
          .aliases = {"apex_fp16_utils"},
          .summary = "DynamicLossScaler of apex.fp16_utils; never below 1, no ceiling",
          .rules = {.finite_test = FiniteTest::kSum},
          .parameters = ApexFp16UtilsParameters(),
          .make = MakeApexFp16Utils};
}

}  // namespace dlsim::sim
