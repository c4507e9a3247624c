// SPDX-License-Identifier: Apache-2.0
// ExponentialUpdateLossScaleManager of TensorFlow 1.
// Source: tensorflow/contrib/mixed_precision/python/loss_scale_manager.py.
#include <cmath>
#include <tuple>

#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct ExponentialUpdate {
  struct Config {
    float init_loss_scale = 0;
    int64_t incr_every_n_steps = 0;
    int64_t decr_every_n_nan_or_inf = 0;
    float incr_ratio = 0;
    float decr_ratio = 0;
  };
  struct State {
    float scale = 0;
    int64_t good = 0;
    int64_t bad = 0;
  };
  static State Start(const Config& config) { return {config.init_loss_scale, 0, 0}; }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    if (input.overflow) {
      // An overflow ends the row of clean steps, but a clean step leaves `bad` as it is.
      if (state.bad + 1 < config.decr_every_n_nan_or_inf) {
        return {.next = {state.scale, 0, state.bad + 1}, .skip = true};
      }
      return {.next = {AtLeastOne(state.scale * config.decr_ratio), 0, 0}, .skip = true};
    }
    if (state.good + 1 < config.incr_every_n_steps) {
      return {.next = {state.scale, state.good + 1, state.bad}};
    }
    const float grown = state.scale * config.incr_ratio;
    return {.next = {std::isfinite(grown) ? grown : state.scale, 0, 0}};
  }
  static int64_t AlikeSteps(const Config& config, const State& state) {
    return AlikeUntil(config.incr_every_n_steps, state.good);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"loss_scale", &State::scale}, StateField{"good", &State::good},
                      StateField{"bad", &State::bad}};
  }
};

const std::vector<ParameterInfo>& TfContribParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"init_loss_scale", {"init_scale"}, "2^15", "loss scale of the first step", kStart},
      {"incr_every_n_steps",
       {},
       "2000",
       "consecutive clean steps until the scale grows",
       kInterval},
      {"decr_every_n_nan_or_inf",
       {},
       "2",
       "overflows since the last change until it shrinks",
       kOverflows},
      {"incr_ratio", {}, "2", "multiplies the scale on growth", kGrowth},
      {"decr_ratio", {}, "0.8", "multiplies the scale when it shrinks", kBackoff},
  };
  return kParameters;
}

std::vector<std::string> Notes(const ExponentialUpdate::Config& config) {
  std::vector<std::string> notes;
  if (!std::isfinite(config.init_loss_scale)) {
    notes.push_back("init_loss_scale is infinite as float32 and can never come back");
  } else {
    NoteFloorOfOne("init_loss_scale", config.init_loss_scale, notes);
  }
  if (config.decr_every_n_nan_or_inf > 1) {
    notes.push_back(
        "overflows add up across clean steps until the scale changes; they need not follow each "
        "other");
  }
  if (config.decr_every_n_nan_or_inf < 1) {
    notes.push_back("decr_every_n_nan_or_inf below 1 acts as 1");
  }
  if (config.incr_every_n_steps < 1) {
    notes.push_back("incr_every_n_steps below 1: the scale grows on every clean step");
  }
  if (config.decr_ratio >= 1) {
    notes.push_back("decr_ratio of 1 or more: overflows do not lower the scale");
  }
  return notes;
}

ConfiguredScaler MakeTfContrib(const ParameterMap& given, std::string_view) {
  const Settings settings{"tf-contrib", TfContribParameters(), given};
  const auto number = [&](std::string_view name) {
    return static_cast<float>(settings.Number(name));
  };
  const ExponentialUpdate::Config config = {
      .init_loss_scale = number("init_loss_scale"),
      .incr_every_n_steps = settings.Integer("incr_every_n_steps"),
      .decr_every_n_nan_or_inf = settings.Integer("decr_every_n_nan_or_inf"),
      .incr_ratio = number("incr_ratio"),
      .decr_ratio = number("decr_ratio")};
  return {.scaler = LossScaler::Make<ExponentialUpdate>(config),
          .parameters = {{"init_loss_scale", settings.Number("init_loss_scale")},
                         {"incr_every_n_steps", config.incr_every_n_steps},
                         {"decr_every_n_nan_or_inf", config.decr_every_n_nan_or_inf},
                         {"incr_ratio", settings.Number("incr_ratio")},
                         {"decr_ratio", settings.Number("decr_ratio")}},
          .notes = Notes(config)};
}

}  // namespace

PolicyInfo TfContribPolicy() {
  return {.name = "tf-contrib",
          .aliases = {"tf_contrib_exponential"},
          .summary = "ExponentialUpdateLossScaleManager of tf.contrib in TensorFlow 1",
          .rules = {.finite_test = FiniteTest::kUnscaledElementwise,
                    .clip_rule = ClipRule::kTensorFlow},
          .parameters = TfContribParameters(),
          .make = MakeTfContrib};
}

}  // namespace dlsim::sim
