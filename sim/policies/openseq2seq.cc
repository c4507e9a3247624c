// SPDX-License-Identifier: Apache-2.0
// The scalers of OpenSeq2Seq: BackoffScaler, and LogMaxScaler, whose scale follows the mean and
// spread of log2 of the largest gradient.
// Source: open_seq2seq/optimizers/automatic_loss_scaler.py.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

// BackoffScaler.

// The original's graph leaves open whether the counter of steps is raised before or after the
// update reads it. The scale is the same, as growth before the first overflow is clipped.
enum class IterationOrder { kIncrementFirst, kIncrementLast };

ShownValue ReadParameter(const Settings& settings, std::string_view name, IterationOrder& into) {
  const std::string order = settings.Text(name);
  into = order == "inc_first" ? IterationOrder::kIncrementFirst : IterationOrder::kIncrementLast;
  if (order != "inc_first" && order != "inc_last") {
    settings.Refuse(name, "unknown order", "inc_first or inc_last");
  }
  return order;
}

struct Backoff {
  struct Config {
    float scale_min = 0;
    float scale_max = 0;
    float step_factor = 0;
    int64_t step_window = 0;
    IterationOrder order = IterationOrder::kIncrementLast;
  };
  struct State {
    float scale = 0;
    int64_t iteration = 0;
    int64_t last_overflow_iteration = -1;
  };
  static State Start(const Config& config) { return {config.scale_max, 0, -1}; }
  // tf.clip_by_value: the lower limit wins where the limits cross, and a NaN stays.
  static float Clip(float scale, const Config& config) {
    return std::max(std::min(scale, config.scale_max), config.scale_min);
  }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    State next = state;
    next.iteration += 1;
    const int64_t seen =
        config.order == IterationOrder::kIncrementFirst ? next.iteration : state.iteration;
    if (input.overflow) {
      next.scale = Clip(state.scale / config.step_factor, config);
      next.last_overflow_iteration = seen;
      return {.next = next, .skip = true};
    }
    if (config.step_window == 0) {
      return {.next = state,
              .skip = true,
              .event = FatalEvent("InvalidArgumentError", "Integer division by zero")};
    }
    if ((seen - state.last_overflow_iteration) % config.step_window == 0) {
      next.scale = Clip(state.scale * config.step_factor, config);
    }
    return {.next = next};
  }
  static constexpr std::tuple kFields = {
      StateField{"scale", &State::scale}, StateField{"iteration", &State::iteration},
      StateField{"last_overflow_iteration", &State::last_overflow_iteration}};
};

}  // namespace

PolicyInfo OpenSeq2SeqBackoffPolicy() {
  using Config = Backoff::Config;
  return PolicyOf<Backoff>(
      {.name = "openseq2seq-backoff",
       .aliases = {"openseq2seq_backoff"},
       .summary = "BackoffScaler of OpenSeq2Seq; starts at its ceiling",
       .rules = {.finite_test = FiniteTest::kUnscaledElementwise,
                 .clip_rule = ClipRule::kTensorFlow}},
      {Row(&Config::scale_min, "scale_min", {"min_loss_scale"}, "1", "floor", kFloor),
       Row(&Config::scale_max, "scale_max", {"max_loss_scale"}, "2^14",
           "ceiling, and the loss scale of the first step", kStart),
       Row(&Config::step_factor, "step_factor", {}, "2",
           "multiplies the scale on growth and divides it on an overflow", kFactor),
       Row(&Config::step_window, "step_window", {}, "2000",
           "steps since the last overflow, and between growths", kInterval),
       Row(&Config::order, "iteration_order", {}, "inc_last",
           "inc_first or inc_last: when the counters advance; the scale does not depend on it")},
      [](Setup<Config>& setup) {
        const Config& config = setup.config;
        setup.Note("the scale starts at scale_max");
        setup.NoteIf(config.scale_min > config.scale_max,
                     "scale_min above scale_max: the first change sets the scale to scale_min");
        setup.NoteIf(config.step_factor <= 1,
                     "step_factor of 1 or less: overflows do not lower the scale");
        setup.NoteIf(config.step_window == 0,
                     "step_window 0: the first clean step divides by zero");
      });
}

// LogMaxScaler.

namespace {

struct LogMax {
  // `rest` is 1 - beta, rounded to float32 after Python's subtraction.
  struct Average {
    float beta = 0;
    float rest = 0;
  };
  struct Config {
    float scale_min = 0;
    float scale_max = 0;
    float log_max = 0;
    Average fast;
    Average slow;
    float overflow_std_dev = 0;
  };
  struct State {
    float scale = 1;
    float x_hat = 0;
    float slow_x_hat = 0;
    float xsquared_hat = 0;
    float b1_correction = 1;
    float b2_correction = 1;
    int64_t iteration = 0;
  };
  static constexpr bool kUsesAbsmax = true;
  static State Start(const Config&) { return {}; }
  static float Blend(const Average& average, float old_value, float value) {
    return average.beta * old_value + average.rest * value;
  }
  // log2 of the scale: 16 less the magnitude that all but a share of the steps stay below. In
  // float32 like the original, whose rounding errors alone spread the values of a constant
  // gradient.
  static float Log2Scale(const State& state, float overflow_std_dev) {
    const float mu = state.x_hat / (1 - state.b1_correction);
    const float e_xsquared = state.xsquared_hat / (1 - state.b2_correction);
    const float slow_mu = state.slow_x_hat / (1 - state.b2_correction);
    const float variance = e_xsquared - slow_mu * slow_mu;
    const float sigma = std::sqrt(std::max(variance, 0.0f));
    return 16 - (sigma * overflow_std_dev + mu);
  }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    const bool overflow = input.overflow || !std::isfinite(input.absmax);
    // The stand-in for an overflow is a power of log_max where its logarithm would belong.
    const float x =
        overflow ? std::pow(2.0f, config.log_max) : std::log(input.absmax) / std::log(2.0f);
    State next = state;
    next.iteration += 1;
    next.x_hat = Blend(config.fast, state.x_hat, x);
    next.b1_correction = state.b1_correction * config.fast.beta;
    next.slow_x_hat = Blend(config.slow, state.slow_x_hat, x);
    next.xsquared_hat = Blend(config.slow, state.xsquared_hat, x * x);
    next.b2_correction = state.b2_correction * config.slow.beta;
    const float proposed = std::pow(2.0f, Log2Scale(next, config.overflow_std_dev));
    next.scale = std::max(std::min(proposed, config.scale_max), config.scale_min);
    return {.next = next, .skip = overflow};
  }
  static constexpr std::tuple kFields = {StateField{"scale", &State::scale},
                                         StateField{"x_hat", &State::x_hat, false},
                                         StateField{"slow_x_hat", &State::slow_x_hat, false},
                                         StateField{"xsquared_hat", &State::xsquared_hat, false},
                                         StateField{"b1_correction", &State::b1_correction, false},
                                         StateField{"b2_correction", &State::b2_correction, false},
                                         StateField{"iteration", &State::iteration, false}};
};

ShownValue ReadParameter(const Settings& settings, std::string_view name, LogMax::Average& into) {
  const double beta = settings.Number(name);
  into = {static_cast<float>(beta), static_cast<float>(1 - beta)};
  return beta;
}

}  // namespace

PolicyInfo OpenSeq2SeqLogMaxPolicy() {
  using Config = LogMax::Config;
  return PolicyOf<LogMax>(
      {.name = "openseq2seq-logmax",
       .aliases = {"openseq2seq_logmax"},
       .summary = "LogMaxScaler of OpenSeq2Seq; follows the largest gradient of each step",
       .rules = {.finite_test = FiniteTest::kUnscaledElementwise,
                 .clip_rule = ClipRule::kTensorFlow}},
      {Row(&Config::scale_min, "scale_min", {"min_loss_scale"}, "1", "floor", kFloor),
       Row(&Config::scale_max, "scale_max", {"max_loss_scale"}, "2^14", "ceiling", kStart),
       Row(&Config::log_max, "log_max", {}, "16",
           "an overflow counts as 2^log_max where log2 of a magnitude belongs"),
       Row(&Config::fast, "beta1", {}, "0.99", "weight of the past in the mean"),
       Row(&Config::slow, "beta2", {}, "0.999", "weight of the past in the spread"),
       Row(&Config::overflow_std_dev, "overflow_std_dev", {}, "3.09",
           "standard deviations between the mean and 2^16")},
      [](Setup<Config>& setup) {
        const Config& config = setup.config;
        setup.Note(
            "an overflow counts as 2^log_max where log2 of a magnitude belongs: one holds the "
            "scale at scale_min for very long");
        setup.NoteIf(config.scale_min > config.scale_max,
                     "scale_min above scale_max: the scale stays at scale_min");
        setup.NoteIf(config.fast.beta == 1 || config.slow.beta == 1,
                     "a beta of 1 divides by zero: the scale is NaN");
      });
}

}  // namespace dlsim::sim
