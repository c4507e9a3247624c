// SPDX-License-Identifier: Apache-2.0
// Paddle's GradScaler of dynamic graphs and the kernel of static graphs, which share a rule but not
// its limits. Sources: python/paddle/amp/grad_scaler.py, paddle/phi/kernels/impl/amp_kernel_impl.h;
// the finite test on unscaled gradients is in paddle/phi/kernels/gpu/amp_kernel.cu.
#include <cmath>
#include <tuple>

#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

struct DynamicGraph {
  static constexpr const char* kScale = "scale";
  static constexpr const char* kGood = "incr_count";
  static constexpr const char* kBad = "decr_count";
  static float Grown(float, float product) { return product; }
  static float Shrunk(float product) { return product; }
};

struct StaticGraph {
  static constexpr const char* kScale = "loss_scaling";
  static constexpr const char* kGood = "good";
  static constexpr const char* kBad = "bad";
  static float Grown(float scale, float product) {
    return std::isfinite(product) ? product : scale;
  }
  static float Shrunk(float product) { return AtLeastOne(product); }
};

// Ratios are float32, as the operators of both graphs hold them.
struct PaddleConfig {
  float init_loss_scaling = 0;
  float incr_ratio = 0;
  float decr_ratio = 0;
  int64_t incr_every_n_steps = 0;
  int64_t decr_every_n_nan_or_inf = 0;
  bool dynamic = true;  // false: overflows still skip their step
};

template <class Graph>
struct PaddleScaler {
  using Config = PaddleConfig;
  struct State {
    float scale = 0;
    int64_t good = 0;
    int64_t bad = 0;
  };
  static State Start(const Config& config) { return {config.init_loss_scaling, 0, 0}; }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    if (!config.dynamic) return {.next = state, .skip = input.overflow};
    if (input.overflow) {
      if (state.bad + 1 != config.decr_every_n_nan_or_inf) {
        return {.next = {state.scale, 0, state.bad + 1}, .skip = true};
      }
      return {.next = {Graph::Shrunk(state.scale * config.decr_ratio), 0, 0}, .skip = true};
    }
    if (state.good + 1 != config.incr_every_n_steps) {
      return {.next = {state.scale, state.good + 1, 0}};
    }
    return {.next = {Graph::Grown(state.scale, state.scale * config.incr_ratio), 0, 0}};
  }
  static int64_t AlikeSteps(const Config& config, const State& state) {
    if (!config.dynamic) return kAlwaysAlike;
    return AlikeUntil(config.incr_every_n_steps, state.good);
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{Graph::kScale, &State::scale},
                      StateField{Graph::kGood, &State::good}, StateField{Graph::kBad, &State::bad}};
  }
};

const std::vector<ParameterInfo>& DynamicParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"init_loss_scaling", {"init_scale"}, "2^16", "loss scale of the first step", kStart},
      {"incr_ratio", {}, "2", "multiplies the scale on growth", kGrowth},
      {"decr_ratio", {}, "0.5", "multiplies the scale when it shrinks", kBackoff},
      {"incr_every_n_steps",
       {},
       "2000",
       "consecutive clean steps until the scale grows",
       kInterval},
      {"decr_every_n_nan_or_inf",
       {},
       "1",
       "consecutive overflows until the scale shrinks",
       kOverflows},
      {"use_dynamic_loss_scaling", {}, "true", "false: the scale never changes"},
      {"enable", {}, "true", "false: the scale is 1 and no step is skipped"},
  };
  return kParameters;
}

const std::vector<ParameterInfo>& StaticParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"init_loss_scaling", {"init_scale"}, "2^15", "loss scale of the first step", kStart},
      {"incr_ratio", {}, "2", "multiplies the scale on growth", kGrowth},
      {"decr_ratio", {}, "0.8", "multiplies the scale when it shrinks", kBackoff},
      {"incr_every_n_steps",
       {},
       "1000",
       "consecutive clean steps until the scale grows",
       kInterval},
      {"decr_every_n_nan_or_inf",
       {},
       "2",
       "consecutive overflows until the scale shrinks",
       kOverflows},
  };
  return kParameters;
}

PaddleConfig ReadConfig(const Settings& settings) {
  const auto number = [&](std::string_view name) {
    return static_cast<float>(settings.Number(name));
  };
  return {.init_loss_scaling = number("init_loss_scaling"),
          .incr_ratio = number("incr_ratio"),
          .decr_ratio = number("decr_ratio"),
          .incr_every_n_steps = settings.Integer("incr_every_n_steps"),
          .decr_every_n_nan_or_inf = settings.Integer("decr_every_n_nan_or_inf")};
}

std::vector<NamedValue> Describe(const Settings& settings, const PaddleConfig& config) {
  return {{"init_loss_scaling", settings.Number("init_loss_scaling")},
          {"incr_ratio", settings.Number("incr_ratio")},
          {"decr_ratio", settings.Number("decr_ratio")},
          {"incr_every_n_steps", config.incr_every_n_steps},
          {"decr_every_n_nan_or_inf", config.decr_every_n_nan_or_inf}};
}

void NoteCounts(const PaddleConfig& config, std::vector<std::string>& notes) {
  if (config.decr_every_n_nan_or_inf > 1) {
    notes.push_back(
        "a clean step clears the count of overflows: decr_every_n_nan_or_inf of them must follow "
        "each other");
  }
  if (config.decr_every_n_nan_or_inf < 1) {
    notes.push_back("decr_every_n_nan_or_inf below 1: the scale never shrinks");
  }
  if (config.incr_every_n_steps < 1) {
    notes.push_back("incr_every_n_steps below 1: the scale never grows");
  }
}

std::vector<std::string> DynamicNotes(const PaddleConfig& config) {
  if (!config.dynamic) return {"the scale never changes, but overflows skip their step"};
  std::vector<std::string> notes;
  const bool grows = config.incr_every_n_steps >= 1;
  const bool shrinks = config.decr_every_n_nan_or_inf >= 1;
  if (grows && shrinks) {
    notes.push_back(
        "no ceiling and no floor: the scale can grow to infinity or fall to 0 and never comes "
        "back");
  } else if (grows) {
    notes.push_back("no ceiling: the scale can grow to infinity and never comes back");
  } else if (shrinks) {
    notes.push_back("no floor: the scale can fall to 0");
  }
  NoteDeadStart("init_loss_scaling", config.init_loss_scaling, notes);
  NoteCounts(config, notes);
  return notes;
}

ConfiguredScaler MakeDynamic(const ParameterMap& given, std::string_view) {
  const Settings settings{"paddle", DynamicParameters(), given};
  PaddleConfig config = ReadConfig(settings);
  config.dynamic = settings.Bool("use_dynamic_loss_scaling");
  const bool enable = settings.Bool("enable");
  std::vector<NamedValue> parameters = Describe(settings, config);
  parameters.push_back({"use_dynamic_loss_scaling", config.dynamic});
  parameters.push_back({"enable", enable});
  if (!enable) {
    return {.scaler = LossScaler::Make<StaticScale>({1}), .parameters = parameters, .notes = {}};
  }
  if (!(settings.Number("incr_ratio") > 1.0)) {
    throw PolicyRefusal{"AssertionError", "The incr_ratio must be > 1.0.", parameters};
  }
  if (!(settings.Number("decr_ratio") < 1.0)) {
    throw PolicyRefusal{"AssertionError", "The decr_ratio must be < 1.0.", parameters};
  }
  return {.scaler = LossScaler::Make<PaddleScaler<DynamicGraph>>(config),
          .parameters = parameters,
          .notes = DynamicNotes(config)};
}

ConfiguredScaler MakeStatic(const ParameterMap& given, std::string_view) {
  const Settings settings{"paddle-static", StaticParameters(), given};
  const PaddleConfig config = ReadConfig(settings);
  std::vector<std::string> notes;
  if (std::isfinite(config.init_loss_scaling)) {
    NoteFloorOfOne("init_loss_scaling", config.init_loss_scaling, notes);
  } else {
    NoteDeadStart("init_loss_scaling", config.init_loss_scaling, notes);
  }
  NoteCounts(config, notes);
  return {.scaler = LossScaler::Make<PaddleScaler<StaticGraph>>(config),
          .parameters = Describe(settings, config),
          .notes = notes};
}

}  // namespace

PolicyInfo PaddlePolicy() {
  return {.name = "paddle",
          .aliases = {"paddle_dygraph"},
          .summary = "paddle.amp.GradScaler of Paddle's dynamic graphs; no floor, no ceiling",
          .rules = {.finite_test = FiniteTest::kUnscaledElementwise},
          .parameters = DynamicParameters(),
          .make = MakeDynamic};
}

PolicyInfo PaddleStaticPolicy() {
  return {.name = "paddle-static",
          .aliases = {"paddle_static"},
          .summary = "loss scaling of Paddle's static graphs, with its older defaults; floor 1",
          .rules = {.finite_test = FiniteTest::kUnscaledElementwise},
          .parameters = StaticParameters(),
          .make = MakeStatic};
}

}  // namespace dlsim::sim
