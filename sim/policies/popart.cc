// SPDX-License-Identifier: Apache-2.0
// Automatic loss scaling of Graphcore's PopART, driven by a histogram of the scaled gradients.
// Sources: willow/src/popx/op/lossscaleupdatex.cpp and
// willow/src/transforms/automaticlossscaling.cpp.
#include <fmt/format.h>

#include <limits>
#include <tuple>

#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct AutomaticLossScaling {
  struct Config {
    float loss_scaling = 1;  // the optimizer's own loss scale
    float bin_edge_location = 0;
    float threshold = 0;
    float above_per_below = 0;  // elements above the edge per element below it that are accepted
    int64_t update_period = 1;
  };
  struct State {
    float update_factor = 1;
    int64_t counter = -1;
    float loss_scaling = 1;
  };
  static State Start(const Config& config) { return {1, -1, config.loss_scaling}; }
  static double Scale(const State& state) { return state.loss_scaling * state.update_factor; }
  static void SetScale(const Config& config, State& state, double scale) {
    state.update_factor = static_cast<float>(scale / double{config.loss_scaling});
  }
  static double HistogramEdge(const Config& config) { return 65504.0f * config.bin_edge_location; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    State next = state;
    next.counter = (state.counter + 1) % config.update_period;
    if (next.counter != 0) return {.next = next};
    const float accepted = static_cast<float>(input.below_edge) * config.above_per_below;
    next.update_factor *= static_cast<float>(input.above_edge) > accepted ? 0.5f : 2.0f;
    return {.next = next};
  }
  static constexpr std::tuple kFields = {StateField{"lossScaleUpdateFactor", &State::update_factor},
                                         StateField{"counter", &State::counter, false}};
};

// What PopART's checks of a proportion print, which differ only in the beginning.
void RequireProportion(float value, const char* name, const char* prefix) {
  if (value >= 0 && value <= 1) return;
  throw PolicyRefusal{
      "popart_exception",
      fmt::format("{}Out of range value for '{}'. The current value is {}, but it should be in "
                  "the range [0, 1].",
                  prefix, name, value)};
}

void FinishPopart(Setup<AutomaticLossScaling::Config>& setup) {
  AutomaticLossScaling::Config& config = setup.config;
  if (config.update_period < 0 || config.update_period > std::numeric_limits<int32_t>::max()) {
    setup.settings.Refuse("updatePeriod", "not a period", "an integer from 1 to 2147483647");
  }
  config.loss_scaling = setup.settings.StaticScale("lossScaling");
  RequireProportion(config.bin_edge_location, "binEdgeLocation", "[AutomaticLossScale transform] ");
  if (config.update_period == 0) {
    throw PolicyRefusal{"popart_exception",
                        "[AutomaticLossScale transform][[executeOpNTimesEveryMTimes].Arguments N "
                        "and M of executeOpNTimesEveryMTimes are 1, 0 . N must not be larger than "
                        "M."};
  }
  const float threshold = config.threshold;
  RequireProportion(threshold, "thresholdUpperCountProportion", "");
  config.above_per_below =
      threshold == 1 ? std::numeric_limits<float>::infinity() : threshold / (1 - threshold);
  setup.Note(
      "every update halves or doubles the scale, and no step is skipped; PopART's comment says the "
      "opposite direction of what it does");
  setup.NoteIf(
      threshold == 1,
      "thresholdUpperCountProportion of 1 divides by zero: every update doubles the scale");
}

}  // namespace

PolicyInfo PopartPolicy() {
  using Config = AutomaticLossScaling::Config;
  return PolicyOf<AutomaticLossScaling>(
      {.name = "popart",
       .aliases = {"popart_als"},
       .summary = "automatic loss scaling of Graphcore's PopART; no step is ever skipped"},
      {Row(&Config::loss_scaling, "lossScaling", {"init_scale"}, "1",
           "loss scale of the optimizer, times the update factor", kStart),
       Row(&Config::bin_edge_location, "binEdgeLocation", {}, "0.125",
           "edge of the histogram as a share of 65504"),
       Row(&Config::threshold, "thresholdUpperCountProportion", {}, "1e-7",
           "share of the elements above the edge beyond which the scale halves"),
       Row(&Config::update_period, "updatePeriod", {}, "1",
           "steps per update; the first step is one")},
      FinishPopart);
}

}  // namespace dlsim::sim
