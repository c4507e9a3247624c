// SPDX-License-Identifier: Apache-2.0
// DynamicGradScaler of Megatron-LM, and that of ColossalAI, which has its rule with hysteresis
// counted upwards; both in float32 throughout. Sources: NVIDIA/Megatron-LM,
// megatron/core/optimizer/grad_scaler.py, and hpcaitech/ColossalAI,
// colossalai/amp/naive_amp/grad_scaler/dynamic_grad_scaler.py.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>

#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct MegatronScaler {
  struct Config {
    AsFloat32 initial_scale;
    AsFloat32 min_scale;
    AsFloat32 growth_factor;
    AsFloat32 backoff_factor;
    int64_t growth_interval = 0;
    int64_t hysteresis = 0;
  };
  struct State {
    float scale = 0;
    int64_t growth_tracker = 0;
    int64_t hysteresis_tracker = 0;
  };
  static State Start(const Config& config) { return {config.initial_scale, 0, config.hysteresis}; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    State next = state;
    if (input.overflow) {
      next.growth_tracker = 0;
      next.hysteresis_tracker -= 1;
      if (next.hysteresis_tracker <= 0) {
        next.scale = std::max<float>(state.scale * config.backoff_factor, config.min_scale);
      }
      return {.next = next, .skip = true};
    }
    next.growth_tracker += 1;
    if (next.growth_tracker == config.growth_interval) {
      next.growth_tracker = 0;
      next.hysteresis_tracker = config.hysteresis;
      next.scale = state.scale * config.growth_factor;
    }
    return {.next = next};
  }
  static constexpr std::tuple kFields = {
      StateField{"scale", &State::scale}, StateField{"growth_tracker", &State::growth_tracker},
      StateField{"hysteresis_tracker", &State::hysteresis_tracker}};
};

void Require(bool condition, const char* message) {
  if (!condition) throw PolicyRefusal{"AssertionError", message};
}

std::string SharedHysteresis(int64_t hysteresis) {
  return "hysteresis is restored only when the scale grows, not by a clean step: overflows far "
         "apart add up, and from overflow " +
         std::to_string(hysteresis) + " on each lowers the scale";
}

// The original's assertions have no message: a traceback shows their text instead.
void FinishMegatron(Setup<MegatronScaler::Config>& setup) {
  const MegatronScaler::Config& config = setup.config;
  Require(config.initial_scale.given > 0, "assert initial_scale > 0.0");
  Require(config.min_scale.given > 0, "assert min_scale > 0.0");
  Require(config.min_scale.given <= config.initial_scale.given,
          "assert min_scale <= initial_scale");
  Require(config.growth_factor.given > 1, "assert growth_factor > 1.0");
  Require(config.backoff_factor.given < 1, "assert backoff_factor < 1.0");
  Require(config.backoff_factor.given > 0, "assert backoff_factor > 0.0");
  Require(config.growth_interval > 0, "assert growth_interval > 0");
  Require(config.hysteresis > 0, "assert hysteresis > 0");
  setup.NoteIf(config.hysteresis > 1, SharedHysteresis(config.hysteresis));
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const float start = config.initial_scale;
  if (std::isfinite(start) && start > 0 && config.growth_interval != kNever) {
    const double infinity = std::numeric_limits<double>::infinity();
    NoteNoCeiling(CleanStepsToReach<MegatronScaler>(config, infinity), setup.notes);
  }
  NoteDeadStart("initial_scale", start, setup.notes);
  setup.NoteIf(config.min_scale == 0,
               "min_scale is 0 as float32: the scale can reach 0 and never returns");
}

}  // namespace

PolicyInfo MegatronPolicy() {
  using Config = MegatronScaler::Config;
  return PolicyOf<MegatronScaler>(
      {.name = "megatron",
       .summary = "Megatron-LM's DynamicGradScaler; no ceiling, can grow to infinity"},
      {Row(&Config::initial_scale, "initial_scale", {"initial_loss_scale", "init_scale"}, "2^32",
           "scale of the first step", kStart),
       Row(&Config::min_scale, "min_scale", {"min_loss_scale"}, "1", "floor of a decrease", kFloor),
       Row(&Config::growth_factor, "growth_factor", {}, "2",
           "multiplies the scale after growth_interval clean steps", kGrowth),
       Row(&Config::backoff_factor, "backoff_factor", {}, "0.5",
           "multiplies the scale when hysteresis is used up", kBackoff),
       Row(&Config::growth_interval, "growth_interval", {"loss_scale_window"}, "1000",
           "consecutive clean steps until the scale grows", kInterval),
       Row(&Config::hysteresis, "hysteresis", {}, "2",
           "overflows between two growths until the scale falls", kOverflows)},
      FinishMegatron);
}

// ColossalAI's. A tensor times a Python float multiplies by the float's float32 value.

namespace {

struct ColossalScaler {
  // A limit, of which none and 0 are alike, as for the original's truth test.
  struct Limit {
    std::optional<double> given;
    operator float() const { return static_cast<float>(given.value_or(0)); }
  };
  struct Config {
    AsFloat32 initial_scale;
    AsFloat32 growth_factor;
    AsFloat32 backoff_factor;
    int64_t growth_interval = 0;
    Limit min_scale;
    Limit max_scale;
    int64_t hysteresis = 0;
  };
  struct State {
    float scale = 0;
    int64_t growth_step = 0;
    int64_t hysteresis_step = 0;
  };
  static State Start(const Config& config) { return {config.initial_scale, 0, 0}; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    State next = state;
    if (input.overflow) {
      next.hysteresis_step += 1;
      next.growth_step = 0;
      if (next.hysteresis_step >= config.hysteresis) {
        next.scale = state.scale * config.backoff_factor;
        if (config.min_scale != 0) next.scale = std::max<float>(next.scale, config.min_scale);
      }
      return {.next = next, .skip = true};
    }
    next.growth_step += 1;
    if (next.growth_step == config.growth_interval) {
      next.growth_step = 0;
      next.hysteresis_step = 0;
      next.scale = state.scale * config.growth_factor;
      if (config.max_scale != 0) next.scale = std::min<float>(next.scale, config.max_scale);
    }
    return {.next = next};
  }
  static constexpr std::tuple kFields = {StateField{"scale", &State::scale},
                                         StateField{"growth_step", &State::growth_step},
                                         StateField{"hysteresis_step", &State::hysteresis_step}};
};

ShownValue ReadParameter(const Settings& settings, std::string_view name,
                         ColossalScaler::Limit& into) {
  return ReadParameter(settings, name, into.given);
}

void CheckColossal(const ColossalScaler::Config& config) {
  const float start = config.initial_scale, min = config.min_scale, max = config.max_scale;
  Require(config.initial_scale.given > 0, "assert initial_scale > 0");
  Require(min >= 0, "The minimum gradient scale cannot be zero or negative");
  Require(min == 0 || min <= start,
          "The minimum gradient scale cannot be greater than the current scale");
  Require(max >= 0, "The maximum gradient scale cannot be zero or negative");
  Require(max == 0 || max >= start,
          "The maximum gradient scale cannot be smaller than the current scale");
  Require(config.growth_factor.given > 1, "The growth factor cannot be equal or smaller than 1");
  Require(config.backoff_factor.given > 0 && config.backoff_factor.given < 1,
          "The backoff factor must be between 0 and 1");
  Require(config.hysteresis >= 0, "The hysteresis cannot be negative");
}

void NoteColossal(Setup<ColossalScaler::Config>& setup) {
  const ColossalScaler::Config& config = setup.config;
  if (config.hysteresis > 1) {
    setup.Note(SharedHysteresis(config.hysteresis) +
               "; checkpoints omit this count and growth_step");
  } else {
    setup.NoteIf(config.hysteresis == 0, "hysteresis 0 acts as 1: every overflow lowers the scale");
    setup.Note("checkpoints omit growth_step: a resumed run counts from 0");
  }
  const bool floor = config.min_scale != 0, ceiling = config.max_scale != 0;
  setup.NoteIf(config.min_scale.given && !floor, "min_scale 0 means none");
  setup.NoteIf(config.max_scale.given && !ceiling, "max_scale 0 means none");
  setup.NoteIf(!floor && !ceiling,
               "no min_scale and no max_scale: the scale can reach 0 or grow to infinity and never "
               "returns");
  setup.NoteIf(!floor && ceiling, "no min_scale: the scale can reach 0 and never returns");
  setup.NoteIf(floor && !ceiling, "no max_scale: the scale can grow to infinity and never returns");
  setup.NoteIf(!std::isfinite(config.initial_scale),
               "initial_scale is infinite as float32 and can never come back");
  setup.NoteIf(config.growth_interval < 1, "growth_interval below 1: the scale never grows");
}

}  // namespace

PolicyInfo ColossalAiPolicy() {
  using Config = ColossalScaler::Config;
  return PolicyOf<ColossalScaler>(
      {.name = "colossalai",
       .summary = "ColossalAI's DynamicGradScaler; its checkpoint keeps only the scale",
       .checkpoint = Kept::kScale},
      {Row(&Config::initial_scale, "initial_scale", {"init_scale", "initial_loss_scale"}, "2^16",
           "scale of the first step", kStart),
       Row(&Config::growth_factor, "growth_factor", {}, "2",
           "multiplies the scale after growth_interval clean steps", kGrowth),
       Row(&Config::backoff_factor, "backoff_factor", {}, "0.5",
           "multiplies the scale when hysteresis is used up", kBackoff),
       Row(&Config::growth_interval, "growth_interval", {}, "1000",
           "consecutive clean steps until the scale grows", kInterval),
       Row(&Config::min_scale, "min_scale", {"min_loss_scale"}, "none",
           "floor of a decrease; none and 0: no floor", kFloor),
       Row(&Config::max_scale, "max_scale", {"max_loss_scale"}, "none",
           "ceiling of growth; none and 0: no ceiling", kCeiling),
       Row(&Config::hysteresis, "hysteresis", {}, "2",
           "overflows between two growths until the scale falls", kOverflows)},
      [](Setup<Config>& setup) {
        CheckColossal(setup.config);
        NoteColossal(setup);
      });
}

}  // namespace dlsim::sim
