// SPDX-License-Identifier: Apache-2.0
// LossScaler of MXNet's AMP: Python floats, each change one step late.
// Source: apache/incubator-mxnet, python/mxnet/amp/loss_scaler.py.
#include <tuple>

#include "sim/base/quantity.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

// A scale among the counters; it shows as the text of float.hex().
struct NextScale {
  double value = 0;
};

std::string FieldValue(const NextScale& scale) { return HexFloat(scale.value); }

bool SetFromNumber(double value, NextScale& scale) {
  scale.value = value;
  return true;
}

struct AmpLossScaler {
  struct Config {
    double loss_scale = 0;
    int64_t scale_seq_len = 0;
    double max_loss_scale = 0;
  };
  struct State {
    double loss_scale = 0;
    NextScale next_loss_scale;
    int64_t unskipped = 0;
  };
  static State Start(const Config& config) {
    return {.loss_scale = config.loss_scale, .next_loss_scale = {config.loss_scale}};
  }
  // The growth looks at the counter only, so that with scale_seq_len 0 an overflow is a growth.
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    State next = state;
    next.loss_scale = state.next_loss_scale.value;
    if (input.overflow) {
      next.next_loss_scale.value = next.loss_scale / 2;
      next.unskipped = 0;
    } else {
      ++next.unskipped;
    }
    if (next.unskipped == config.scale_seq_len) {
      next.unskipped = 0;
      const double grown = next.loss_scale * 2;
      next.next_loss_scale.value = grown < config.max_loss_scale ? grown : config.max_loss_scale;
    }
    return {.next = next, .skip = input.overflow};
  }
  static void SetScale(const Config&, State& state, double scale) {
    state.loss_scale = scale;
    state.next_loss_scale = {scale};
  }
  static constexpr std::tuple kFields = {StateField{"loss_scale", &State::loss_scale},
                                         StateField{"next_loss_scale", &State::next_loss_scale},
                                         StateField{"unskipped", &State::unskipped}};
};

}  // namespace

PolicyInfo MxnetPolicy() {
  using Config = AmpLossScaler::Config;
  return PolicyOf<AmpLossScaler>(
      {.name = "mxnet",
       .summary = "LossScaler of MXNet's AMP; each change acts one step late",
       .checkpoint = Kept::kNothing},
      {Row(&Config::loss_scale, "loss_scale", {"init", "init_scale", "initial_loss_scale"}, "2^16",
           "loss scale of the first step", kStart),
       Row(&Config::scale_seq_len, "scale_seq_len", {"window"}, "2000",
           "consecutive clean steps until the scale doubles", kInterval),
       Row(&Config::max_loss_scale, "max_loss_scale", {"max_scale"}, "2^24", "ceiling of growth",
           kCeiling)},
      [](Setup<Config>& setup) {
        const Config& config = setup.config;
        setup.Note(
            "each change acts one step late: the step after an overflow still has the old scale, "
            "and growth shows one step after scale_seq_len clean ones");
        setup.NoteIf(config.scale_seq_len == 0,
                     "scale_seq_len 0: overflows double the scale and clean steps never change it");
        setup.NoteIf(config.scale_seq_len < 0, "scale_seq_len below 0: the scale never grows");
        setup.NoteIf(config.loss_scale > config.max_loss_scale,
                     "loss_scale above max_loss_scale: the first growth lowers the scale");
        NoteCeiling("max_loss_scale", config.max_loss_scale,
                    CleanStepsToReach<AmpLossScaler>(config, config.max_loss_scale), setup.notes);
      });
}

}  // namespace dlsim::sim
