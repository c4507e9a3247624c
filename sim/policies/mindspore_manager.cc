// SPDX-License-Identifier: Apache-2.0
// DynamicLossScaleManager of MindSpore, updated on the host, with a Python number as its scale.
// Source: MindSpore, mindspore/python/mindspore/train/loss_scale_manager.py.
#include <string>
#include <tuple>

#include "sim/policies/policies.h"
#include "sim/policies/policy.h"
#include "sim/policies/python_number.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

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
  static double Scale(const State& state) { return state.loss_scale.ToDouble(); }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return config.scale_window.AlikeUntilMultiple(state.cur_iter - state.last_overflow_iter);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"loss_scale", &State::loss_scale},
                      StateField{"cur_iter", &State::cur_iter},
                      StateField{"last_overflow_iter", &State::last_overflow_iter},
                      StateField{"bad_step", &State::bad_step}};
  }
};

Transition<LossScaleManager::State> LossScaleManager::Next(const Config& config, const State& state,
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

const std::vector<ParameterInfo>& MindsporeManagerParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"init_loss_scale",
       {"init_scale", "initial_loss_scale"},
       "2^24",
       "loss scale of the first step, at least 1",
       kStart},
      {"scale_factor", {}, "2", "the scale is multiplied by this or by its reciprocal", kFactor},
      {"scale_window",
       {"loss_scale_window"},
       "2000",
       "clean steps until the scale grows",
       kInterval},
  };
  return kParameters;
}

void Check(const LossScaleManager::Config& config, const std::vector<NamedValue>& parameters) {
  if (config.init_loss_scale < One()) {
    throw PolicyRefusal{
        "ValueError",
        "The argument 'init_loss_scale' must be > 1, but got " + config.init_loss_scale.Repr(),
        parameters};
  }
  const std::string window = "For 'DynamicLossScaleManager', the 'scale_window' must be int";
  if (!config.scale_window.is_int()) {
    throw PolicyRefusal{"TypeError", window + ", but got 'float'", parameters};
  }
  if (config.scale_window < One()) {
    throw PolicyRefusal{
        "ValueError",
        window + " and must > 0, but got '" + config.scale_window.Repr() + "' with type 'int'.",
        parameters};
  }
  if (!(PythonNumber() < config.scale_factor)) {
    throw PolicyRefusal{
        "ValueError",
        "The argument 'scale_factor' must be > 0, but got " + config.scale_factor.Repr(),
        parameters};
  }
}

ConfiguredScaler MakeMindsporeManager(const ParameterMap& given, std::string_view) {
  const Settings settings{"mindspore-manager", MindsporeManagerParameters(), given};
  const LossScaleManager::Config config = {
      .init_loss_scale = ReadPythonNumber(settings, "init_loss_scale"),
      .scale_factor = ReadPythonNumber(settings, "scale_factor"),
      .scale_window = ReadPythonNumber(settings, "scale_window")};
  const std::vector<NamedValue> parameters = {
      {"init_loss_scale", FieldValue(config.init_loss_scale)},
      {"scale_factor", FieldValue(config.scale_factor)},
      {"scale_window", FieldValue(config.scale_window)}};
  Check(config, parameters);
  std::vector<std::string> notes;
  NoteFactor(config.scale_factor, notes);
  NoteWindow(config.scale_window, notes);
  return {.scaler = LossScaler::Make<LossScaleManager>(config),
          .parameters = parameters,
          .notes = notes};
}

}  // namespace

PolicyInfo MindSporeManagerPolicy() {
  return {.name = "mindspore-manager",
          .aliases = {"mindspore_manager"},
          .summary = "MindSpore's DynamicLossScaleManager; 1001 overflows in a row raise",
          .rules = {.finite_test = FiniteTest::kUnscaledElementwise},
          .parameters = MindsporeManagerParameters(),
          .make = MakeMindsporeManager,
          .checkpoint = CheckpointContent::kNothing};
}

}  // namespace dlsim::sim
