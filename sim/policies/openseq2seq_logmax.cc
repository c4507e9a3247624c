// SPDX-License-Identifier: Apache-2.0
// LogMaxScaler of OpenSeq2Seq: the scale follows the mean and spread of log2 of the largest
// gradient. Source: open_seq2seq/optimizers/automatic_loss_scaler.py.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct LogMax {
  // `1 - beta` is rounded to float32 after Python's subtraction.
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
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static constexpr auto Fields() {
    return std::tuple{StateField{"scale", &State::scale},
                      StateField{"x_hat", &State::x_hat, false},
                      StateField{"slow_x_hat", &State::slow_x_hat, false},
                      StateField{"xsquared_hat", &State::xsquared_hat, false},
                      StateField{"b1_correction", &State::b1_correction, false},
                      StateField{"b2_correction", &State::b2_correction, false},
                      StateField{"iteration", &State::iteration, false}};
  }
};

float Blend(const LogMax::Average& average, float old_value, float value) {
  return average.beta * old_value + average.rest * value;
}

// log2 of the scale: 16 less the magnitude that all but a share of the steps stay below. In float32
// like the original, whose rounding errors alone spread the values of a constant gradient.
float Log2Scale(const LogMax::State& state, float overflow_std_dev) {
  const float mu = state.x_hat / (1 - state.b1_correction);
  const float e_xsquared = state.xsquared_hat / (1 - state.b2_correction);
  const float slow_mu = state.slow_x_hat / (1 - state.b2_correction);
  const float variance = e_xsquared - slow_mu * slow_mu;
  const float sigma = std::sqrt(std::max(variance, 0.0f));
  return 16 - (sigma * overflow_std_dev + mu);
}

Transition<LogMax::State> LogMax::Next(const Config& config, const State& state,
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

const std::vector<ParameterInfo>& Openseq2seqLogmaxParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"scale_min", {"min_loss_scale"}, "1", "floor", kFloor},
      {"scale_max", {"max_loss_scale"}, "2^14", "ceiling", kStart},
      {"log_max", {}, "16", "an overflow counts as 2^log_max where log2 of a magnitude belongs"},
      {"beta1", {}, "0.99", "weight of the past in the mean"},
      {"beta2", {}, "0.999", "weight of the past in the spread"},
      {"overflow_std_dev", {}, "3.09", "standard deviations between the mean and 2^16"},
  };
  return kParameters;
}

std::vector<std::string> Notes(const LogMax::Config& config) {
  std::vector<std::string> notes = {
      "an overflow counts as 2^log_max where log2 of a magnitude belongs: one holds the scale at "
      "scale_min for very long"};
  if (config.scale_min > config.scale_max) {
    notes.push_back("scale_min above scale_max: the scale stays at scale_min");
  }
  if (config.fast.beta == 1 || config.slow.beta == 1) {
    notes.push_back("a beta of 1 divides by zero: the scale is NaN");
  }
  return notes;
}

ConfiguredScaler MakeOpenseq2seqLogmax(const ParameterMap& given, std::string_view) {
  const Settings settings{"openseq2seq-logmax", Openseq2seqLogmaxParameters(), given};
  const auto number = [&](std::string_view name) {
    return static_cast<float>(settings.Number(name));
  };
  const auto average = [&](std::string_view name) -> LogMax::Average {
    return {number(name), static_cast<float>(1 - settings.Number(name))};
  };
  const LogMax::Config config = {.scale_min = number("scale_min"),
                                 .scale_max = number("scale_max"),
                                 .log_max = number("log_max"),
                                 .fast = average("beta1"),
                                 .slow = average("beta2"),
                                 .overflow_std_dev = number("overflow_std_dev")};
  std::vector<NamedValue> parameters;
  for (const ParameterInfo& info : Openseq2seqLogmaxParameters()) {
    parameters.push_back({std::string(info.name), settings.Number(info.name)});
  }
  return {
      .scaler = LossScaler::Make<LogMax>(config), .parameters = parameters, .notes = Notes(config)};
}

}  // namespace

PolicyInfo OpenSeq2SeqLogMaxPolicy() {
  return {.name = "openseq2seq-logmax",
          .aliases = {"openseq2seq_logmax"},
          .summary = "LogMaxScaler of OpenSeq2Seq; follows the largest gradient of each step",
          .rules = {.finite_test = FiniteTest::kUnscaledElementwise,
                    .clip_rule = ClipRule::kTensorFlow},
          .parameters = Openseq2seqLogmaxParameters(),
          .make = MakeOpenseq2seqLogmax};
}

}  // namespace dlsim::sim
