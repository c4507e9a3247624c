// SPDX-License-Identifier: Apache-2.0
// FP16_Optimizer of DeepSpeed without ZeRO, which has a rule of its own.
// Source: microsoft/DeepSpeed, deepspeed/runtime/fp16/fused_optimizer.py.
#include "sim/policies/policies.h"
#include "sim/policies/policy.h"
#include "sim/policies/python_number.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct Fp16Optimizer {
  struct Config {
    bool dynamic = true;      // false: overflows still skip their step
    PythonNumber init_scale;  // or the static loss_scale
    PythonNumber scale_window;
    PythonNumber min_scale;
  };
  using State = IterationState;
  static State Start(const Config& config) { return {.cur_scale = config.init_scale}; }
  static double Scale(const State& state) { return state.cur_scale.ToDouble(); }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    if (!config.dynamic) return kAlwaysAlike;
    return config.scale_window.AlikeUntilMultiple(state.cur_iter - state.last_overflow_iter - 1);
  }
  static constexpr auto Fields() { return State::Fields(); }
};

// A float since 0.18.6; the integer before differs only in what becomes of integers above 2^1023.
const PythonNumber& ScaleFactor() {
  static const PythonNumber kTwo = PythonNumber::Float(2);
  return kTwo;
}

Transition<Fp16Optimizer::State> Fp16Optimizer::Next(const Config& config, const State& state,
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

const std::vector<ParameterInfo>& DeepspeedFp16OptimizerParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"loss_scale", {"static_loss_scale"}, "0", "0: dynamic; else a scale that never changes"},
      {"init_scale",
       {"initial_scale", "initial_loss_scale"},
       "2^16",
       "scale of the first step",
       kStart},
      {"scale_window",
       {"loss_scale_window"},
       "1000",
       "clean steps until the scale doubles again",
       kInterval},
      {"min_scale", {"min_loss_scale"}, "1", "floor", kFloor},
  };
  return kParameters;
}

std::vector<std::string> Notes(const Fp16Optimizer::Config& config) {
  if (!config.dynamic) return {kStaticSkips};
  std::vector<std::string> notes;
  NoteLaterGrowth(config.scale_window, notes);
  if (config.init_scale < config.min_scale) {
    notes.push_back("init_scale below min_scale: the first overflow raises the scale");
  }
  if (!(PythonNumber() < config.min_scale)) {
    notes.push_back("min_scale of 0 or less: the scale can reach 0 and never returns");
  }
  return notes;
}

ConfiguredScaler MakeDeepspeedFp16Optimizer(const ParameterMap& given, std::string_view) {
  const Settings settings{"deepspeed-fp16-optimizer", DeepspeedFp16OptimizerParameters(), given};
  const PythonNumber init_scale = ReadPositive(settings, "init_scale");
  const PythonNumber static_scale = ReadStaticScale(settings);
  const bool dynamic = static_scale == PythonNumber();
  const Fp16Optimizer::Config config = {.dynamic = dynamic,
                                        .init_scale = dynamic ? init_scale : static_scale,
                                        .scale_window = ReadPythonNumber(settings, "scale_window"),
                                        .min_scale = ReadPythonNumber(settings, "min_scale")};
  return {.scaler = LossScaler::Make<Fp16Optimizer>(config),
          .parameters = {{"loss_scale", FieldValue(static_scale)},
                         {"init_scale", FieldValue(init_scale)},
                         {"scale_window", FieldValue(config.scale_window)},
                         {"min_scale", FieldValue(config.min_scale)}},
          .notes = Notes(config)};
}

}  // namespace

PolicyInfo DeepSpeedFp16OptimizerPolicy() {
  return {.name = "deepspeed-fp16-optimizer",
          .aliases = {"deepspeed_fp16_optimizer"},
          .summary = "DeepSpeed's FP16_Optimizer (no ZeRO); first growth one step later",
          .rules = {.finite_test = FiniteTest::kScaledNorm},
          .parameters = DeepspeedFp16OptimizerParameters(),
          .make = MakeDeepspeedFp16Optimizer};
}

}  // namespace dlsim::sim
