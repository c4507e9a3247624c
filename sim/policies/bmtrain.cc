// SPDX-License-Identifier: Apache-2.0
// OptimManager of BMTrain 1.0, with a Python number as its scale.
// Source: OpenBMB/BMTrain, bmtrain/optim/optim_manager.py.
#include <limits>
#include <string>
#include <tuple>

#include "sim/policies/policies.h"
#include "sim/policies/policy.h"
#include "sim/policies/python_number.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct OptimManager {
  struct Config {
    PythonNumber loss_scale;
    PythonNumber loss_scale_factor;
    int64_t loss_scale_steps = 0;
    PythonNumber min_loss_scale;
    PythonNumber max_loss_scale;
  };
  struct State {
    PythonNumber loss_scale;
    int64_t steps_since_last_scale = 0;
  };
  static State Start(const Config& config) { return {.loss_scale = config.loss_scale}; }
  static double Scale(const State& state) { return state.loss_scale.ToDouble(); }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return AlikeUntil(config.loss_scale_steps, state.steps_since_last_scale);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"loss_scale", &State::loss_scale},
                      StateField{"steps_since_last_scale", &State::steps_since_last_scale}};
  }
};

// The limits are looked at before a change, which may go beyond them. An overflow at the floor does
// not begin a new count.
Transition<OptimManager::State> OptimManager::Next(const Config& config, const State& state,
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
                       state.loss_scale < config.max_loss_scale;
    if (grows) next = {.loss_scale = state.loss_scale * config.loss_scale_factor};
  });
}

const std::vector<ParameterInfo>& BmtrainParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"loss_scale",
       {"init_scale", "initial_loss_scale"},
       "1024",
       "loss scale of the first step; the original's None is static with 1",
       kStart},
      {"loss_scale_factor", {}, "2", "the scale is multiplied and divided by this", kFactor},
      {"loss_scale_steps", {}, "1024", "clean steps until the scale grows", kInterval},
      {"min_loss_scale", {}, "1", "only a scale above this falls", kFloor},
      {"max_loss_scale", {}, "none", "only a scale below this grows", kCeiling},
  };
  return kParameters;
}

std::vector<std::string> BmtrainNotes(const OptimManager::Config& config) {
  std::vector<std::string> notes = {
      "the limits are looked at before a change: the scale can end one loss_scale_factor beyond "
      "them"};
  if (config.loss_scale_factor == PythonNumber::Int(1)) {
    notes.push_back("loss_scale_factor 1: the scale does not change");
  }
  return notes;
}

// A factor of 1 or less is turned round.
PythonNumber ReadBmtrainFactor(const Settings& settings,
                               const std::vector<NamedValue>& parameters) {
  const PythonNumber one = PythonNumber::Int(1);
  const PythonNumber factor = ReadPythonNumber(settings, "loss_scale_factor");
  try {
    return one < factor ? factor : one / factor;
  } catch (const PythonError& error) {
    throw PolicyRefusal{error.type, error.message, parameters};
  }
}

ConfiguredScaler MakeBmtrain(const ParameterMap& given, std::string_view) {
  const Settings settings{"bmtrain", BmtrainParameters(), given};
  const bool limited = OptionalNumber(settings, "max_loss_scale").has_value();
  OptimManager::Config config = {
      .loss_scale = ReadPositive(settings, "loss_scale"),
      .loss_scale_factor = ReadPythonNumber(settings, "loss_scale_factor"),
      .loss_scale_steps = ReadCount(settings, "loss_scale_steps"),
      .min_loss_scale = ReadPythonNumber(settings, "min_loss_scale"),
      .max_loss_scale = limited ? ReadPythonNumber(settings, "max_loss_scale")
                                : PythonNumber::Float(std::numeric_limits<double>::infinity())};
  std::vector<NamedValue> parameters = {{"loss_scale", FieldValue(config.loss_scale)},
                                        {"loss_scale_factor", FieldValue(config.loss_scale_factor)},
                                        {"loss_scale_steps", config.loss_scale_steps},
                                        {"min_loss_scale", FieldValue(config.min_loss_scale)},
                                        {"max_loss_scale", "none"}};
  if (limited) parameters.back().value = FieldValue(config.max_loss_scale);
  config.loss_scale_factor = ReadBmtrainFactor(settings, parameters);
  return {.scaler = LossScaler::Make<OptimManager>(config),
          .parameters = parameters,
          .notes = BmtrainNotes(config)};
}

}  // namespace

PolicyInfo BmtrainPolicy() {
  return {.name = "bmtrain",
          .aliases = {},
          .summary = "BMTrain's OptimManager; its checkpoint keeps only the scale",
          .rules = {.finite_test = FiniteTest::kElementwise},
          .parameters = BmtrainParameters(),
          .make = MakeBmtrain,
          .checkpoint = CheckpointContent::kScaleOnly};
}

}  // namespace dlsim::sim
