// SPDX-License-Identifier: Apache-2.0
// The state machine of fairseq's DynamicLossScaler and of metaseq's, which grew out of it: Python
// floats.
// Sources: fairseq/optim/dynamic_loss_scaler.py and metaseq/optim/dynamic_loss_scaler.py, called
// from fp16_optimizer.py of each: check_overflow(norm), then update() after the optimizer's step.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {

enum class FairseqStack { kFairseq, kMetaseq };

// A Python number that is an int or a float; only its text and its errors tell them apart.
struct PythonWindow {
  enum class Type { kInt, kFloat };
  double value = 0;
  Type type = Type::kInt;
};

// For StateField.
decltype(NamedValue::value) FieldValue(const PythonWindow& window);
bool SetFromNumber(double value, PythonWindow& window);

struct FairseqLossScaler {
  struct Config {
    FairseqStack stack = FairseqStack::kFairseq;
    double init_scale = 0;
    double scale_factor = 2;
    int64_t scale_window = 0;
    double tolerance = 0;
    std::optional<double> threshold;
    double min_loss_scale = 0;
  };
  struct State {
    double loss_scale = 0;
    int64_t iter = 0;
    int64_t last_overflow_iter = -1;
    int64_t last_rescale_iter = -1;
    int64_t overflows_since_rescale = 0;
    PythonWindow scale_window;
  };
  static State Start(const Config& config) {
    return {.loss_scale = config.init_scale,
            .scale_window = {static_cast<double>(config.scale_window), PythonWindow::Type::kInt}};
  }
  static double Scale(const State& state) { return state.loss_scale; }
  static Transition<State> CheckOverflow(const Config& config, const State& state);
  static Transition<State> Update(const Config& config, const State& state);
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    return input.overflow ? CheckOverflow(config, state) : Update(config, state);
  }
  static int64_t AlikeSteps(const Config&, const State& state) {
    return AlikeUntilMultiple(WholeInterval(state.scale_window.value),
                              state.iter - state.last_overflow_iter);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"loss_scale", &State::loss_scale},
                      StateField{"iter", &State::iter},
                      StateField{"last_overflow_iter", &State::last_overflow_iter},
                      StateField{"last_rescale_iter", &State::last_rescale_iter},
                      StateField{"overflows_since_rescale", &State::overflows_since_rescale},
                      StateField{"scale_window", &State::scale_window}};
  }
};

}  // namespace dlsim::sim
