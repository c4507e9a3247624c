// SPDX-License-Identifier: Apache-2.0
// BackoffScaler of OpenSeq2Seq. Source: open_seq2seq/optimizers/automatic_loss_scaler.py.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "dlsim/error.h"
#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

// The original's graph leaves open whether the counter of steps is raised before or after the
// update reads it. The scale is the same, as growth before the first overflow is clipped.
enum class IterationOrder { kIncrementFirst, kIncrementLast };

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
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    const int64_t first = config.order == IterationOrder::kIncrementFirst ? 1 : 0;
    return AlikeUntilMultiple(config.step_window,
                              state.iteration + first - state.last_overflow_iteration);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"scale", &State::scale},
                      StateField{"iteration", &State::iteration},
                      StateField{"last_overflow_iteration", &State::last_overflow_iteration}};
  }
};

// tf.clip_by_value: the lower limit wins where the limits cross, and a NaN stays.
float Clip(float scale, const Backoff::Config& config) {
  return std::max(std::min(scale, config.scale_max), config.scale_min);
}

Transition<Backoff::State> Backoff::Next(const Config& config, const State& state,
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
            .event = ScalerEvent{.type = "InvalidArgumentError",
                                 .message = "Integer division by zero",
                                 .fatal = true,
                                 .details = {}}};
  }
  if ((seen - state.last_overflow_iteration) % config.step_window == 0) {
    next.scale = Clip(state.scale * config.step_factor, config);
  }
  return {.next = next};
}

const std::vector<ParameterInfo>& Openseq2seqParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"scale_min", {"min_loss_scale"}, "1", "floor", kFloor},
      {"scale_max",
       {"max_loss_scale"},
       "2^14",
       "ceiling, and the loss scale of the first step",
       kStart},
      {"step_factor",
       {},
       "2",
       "multiplies the scale on growth and divides it on an overflow",
       kFactor},
      {"step_window", {}, "2000", "steps since the last overflow, and between growths", kInterval},
      {"iteration_order",
       {},
       "inc_last",
       "inc_first or inc_last: when the counters advance; the scale does not depend on it"},
  };
  return kParameters;
}

IterationOrder ReadOrder(const Settings& settings) {
  const std::string order = settings.Text("iteration_order");
  if (order == "inc_first") return IterationOrder::kIncrementFirst;
  if (order == "inc_last") return IterationOrder::kIncrementLast;
  throw UsageError("openseq2seq-backoff.iteration_order", "unknown order", "inc_first or inc_last",
                   Quoted(order));
}

std::vector<std::string> Notes(const Backoff::Config& config) {
  std::vector<std::string> notes = {"the scale starts at scale_max"};
  if (config.scale_min > config.scale_max) {
    notes.push_back("scale_min above scale_max: the first change sets the scale to scale_min");
  }
  if (config.step_factor <= 1) {
    notes.push_back("step_factor of 1 or less: overflows do not lower the scale");
  }
  if (config.step_window == 0) {
    notes.push_back("step_window 0: the first clean step divides by zero");
  }
  return notes;
}

ConfiguredScaler MakeOpenseq2seq(const ParameterMap& given, std::string_view) {
  const Settings settings{"openseq2seq-backoff", Openseq2seqParameters(), given};
  const Backoff::Config config = {.scale_min = static_cast<float>(settings.Number("scale_min")),
                                  .scale_max = static_cast<float>(settings.Number("scale_max")),
                                  .step_factor = static_cast<float>(settings.Number("step_factor")),
                                  .step_window = settings.Integer("step_window"),
                                  .order = ReadOrder(settings)};
  return {.scaler = LossScaler::Make<Backoff>(config),
          .parameters = {{"scale_min", settings.Number("scale_min")},
                         {"scale_max", settings.Number("scale_max")},
                         {"step_factor", settings.Number("step_factor")},
                         {"step_window", config.step_window},
                         {"iteration_order", settings.Text("iteration_order")}},
          .notes = Notes(config)};
}

}  // namespace

PolicyInfo OpenSeq2SeqBackoffPolicy() {
  return {.name = "openseq2seq-backoff",
          .aliases = {"openseq2seq_backoff"},
          .summary = "BackoffScaler of OpenSeq2Seq; starts at its ceiling",
          .rules = {.finite_test = FiniteTest::kUnscaledElementwise,
                    .clip_rule = ClipRule::kTensorFlow},
          .parameters = Openseq2seqParameters(),
          .make = MakeOpenseq2seq};
}

}  // namespace dlsim::sim
