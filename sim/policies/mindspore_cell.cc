// SPDX-License-Identifier: Apache-2.0
// DynamicLossScaleUpdateCell of MindSpore: float32, no ceiling, its counters in int32.
// Source: MindSpore, mindspore/python/mindspore/nn/wrap/loss_scale.py.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

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
  static double Scale(const State& state) { return state.scale_sense; }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return AlikeUntil(config.scale_window, int64_t{state.cur_iter} - state.last_overflow_iter);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"scale_sense", &State::scale_sense},
                      StateField{"cur_iter", &State::cur_iter},
                      StateField{"last_overflow_iter", &State::last_overflow_iter}};
  }
};

// A product with the rounded reciprocal, not a quotient. std::max keeps a NaN that is its first
// argument.
Transition<UpdateCell::State> UpdateCell::Next(const Config& config, const State& state,
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

const std::vector<ParameterInfo>& MindsporeCellParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"loss_scale_value",
       {"init_scale", "initial_loss_scale"},
       "2^24",
       "loss scale of the first step",
       kStart},
      {"scale_factor",
       {},
       "2",
       "multiplies the scale on growth; its reciprocal on an overflow",
       kFactor},
      {"scale_window",
       {},
       "2000",
       "clean steps since the last change until the scale grows",
       kInterval},
  };
  return kParameters;
}

std::vector<std::string> Notes(const UpdateCell::Config& config) {
  std::vector<std::string> notes;
  const double infinity = std::numeric_limits<double>::infinity();
  if (std::isinf(config.loss_scale_value)) {
    notes.push_back("loss_scale_value is infinite as float32 and can never come back");
  } else if (config.scale_factor > 1) {
    NoteNoCeiling(CleanStepsToReach<UpdateCell>(config, infinity), notes);
  }
  NoteDivisor("scale_factor", config.scale_factor, notes);
  if (config.scale_window < 1) notes.push_back("scale_window below 1 acts as 1");
  if (config.loss_scale_value < 1) {
    notes.push_back("loss_scale_value below 1: an overflow raises the scale to 1");
  }
  return notes;
}

ConfiguredScaler MakeMindsporeCell(const ParameterMap& given, std::string_view) {
  const Settings settings{"mindspore-cell", MindsporeCellParameters(), given};
  const double loss_scale_value = settings.Number("loss_scale_value");
  const double scale_factor = settings.Number("scale_factor");
  const UpdateCell::Config config = {.loss_scale_value = static_cast<float>(loss_scale_value),
                                     .scale_factor = static_cast<float>(scale_factor),
                                     .scale_window = Int32(settings, "scale_window")};
  return {.scaler = LossScaler::Make<UpdateCell>(config),
          .parameters = {{"loss_scale_value", loss_scale_value},
                         {"scale_factor", scale_factor},
                         {"scale_window", int64_t{config.scale_window}}},
          .notes = Notes(config)};
}

}  // namespace

PolicyInfo MindsporeCellPolicy() {
  return {.name = "mindspore-cell",
          .aliases = {"mindspore_update_cell"},
          .summary = "DynamicLossScaleUpdateCell of MindSpore; its scale can grow to infinity",
          .rules = {.finite_test = FiniteTest::kUnscaledElementwise},
          .parameters = MindsporeCellParameters(),
          .make = MakeMindsporeCell};
}

}  // namespace dlsim::sim
