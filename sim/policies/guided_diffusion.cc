// SPDX-License-Identifier: Apache-2.0
// MixedPrecisionTrainer of guided-diffusion and improved-diffusion, which keeps the logarithm of
// its scale, a Python float. Source: openai/guided-diffusion, guided_diffusion/fp16_util.py.
#include <cmath>
#include <tuple>

#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

// The logarithm of a scale, and the scale, since computing it takes longer than a step does.
struct LogScale {
  LogScale(double value = 0) : log2(value), scale(std::pow(2.0, value)) {}

  double log2, scale;
};
bool SetFromNumber(double value, LogScale& field) {
  field = value;
  return true;
}
double FieldValue(const LogScale& field) { return field.log2; }

struct MixedPrecisionTrainer {
  struct Config {
    double init_scale = 0;
    double fp16_scale_growth = 0;
  };
  struct State {
    double loss_scale = 0;  // 2^lg_loss_scale
    LogScale lg_loss_scale;
  };
  static State Start(const Config& config) {
    return {config.init_scale, std::log2(config.init_scale)};
  }
  static double Scale(const State& state) { return state.lg_loss_scale.scale; }
  static void SetScale(const Config&, State& state, double scale) {
    state = {scale, std::log2(scale)};
  }
  // The norm of the gradients is divided by the scale before it is looked at: no norm is finite at
  // 0.
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    // Whether 2^lg_loss_scale rounds to infinity or to 0 is seen without computing it.
    if (state.lg_loss_scale.log2 >= 1024) {
      return {.next = state,
              .skip = true,
              .event = FatalEvent("OverflowError", "(34, 'Numerical result out of range')")};
    }
    const bool skip = input.overflow || state.lg_loss_scale.log2 <= -1075;
    State next = state;
    next.lg_loss_scale = state.lg_loss_scale.log2 + (skip ? -1 : config.fp16_scale_growth);
    next.loss_scale = Scale(next);
    return {.next = next, .skip = skip};
  }
  static constexpr std::tuple kFields = {StateField{"loss_scale", &State::loss_scale},
                                         StateField{"lg_loss_scale", &State::lg_loss_scale}};
};

}  // namespace

PolicyInfo GuidedDiffusionPolicy() {
  using Config = MixedPrecisionTrainer::Config;
  return PolicyOf<MixedPrecisionTrainer>(
      {.name = "guided-diffusion",
       .aliases = {"improved-diffusion"},
       .summary = "OpenAI's guided-diffusion: every clean step raises the scale a little",
       .rules = {.finite_test = FiniteTest::kScaledNorm},
       .checkpoint = Kept::kNothing},
      {Row(&Config::init_scale, "init_scale", {"initial_loss_scale"}, "2^20",
           "loss scale of the first step; the original has its log2, initial_lg_loss_scale",
           kStart),
       Row(&Config::fp16_scale_growth, "fp16_scale_growth", {}, "0.001",
           "a clean step adds this to log2 of the scale")},
      [](Setup<Config>& setup) {
        setup.settings.RequirePositive("init_scale", setup.config.init_scale);
        setup.Note(
            "an overflow halves the scale, each clean step multiplies it by 2^fp16_scale_growth; "
            "there is no floor: the scale can reach 0, and then every step is skipped");
      });
}

}  // namespace dlsim::sim
