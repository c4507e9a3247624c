// SPDX-License-Identifier: Apache-2.0
// CSDynamicLossScale of Cerebras' TensorFlow stack.
// Source: Cerebras/modelzoo, modelzoo/common/tf/optimizers/LossScale.py.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/policies/alike_steps.h"
#include "sim/policies/cerebras_notes.h"
#include "sim/policies/policies.h"
#include "sim/policies/settings.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

// Beyond this the int64 products of counters in Next could overflow.
constexpr int64_t kMaxPeriod = int64_t{1} << 53;

struct CsDynamicLossScale {
  struct Config {
    float initial_loss_scale = 0;
    int64_t increment_period = 0;
    float min_loss_scale = 0;
    float max_loss_scale = 0;
    float overflow_tolerance = 0;
  };
  struct State {
    float scale = 0;
    int64_t steps_since_rescale = 0;
    int64_t overflows_since_rescale = 0;
  };
  // Not clamped: the limits act from the first update on.
  static State Start(const Config& config) { return {config.initial_loss_scale, 0, 0}; }
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    // Without overflows their share stays at 0.
    const bool tolerates = config.overflow_tolerance >= 0 && state.overflows_since_rescale == 0;
    return tolerates ? AlikeUntil(config.increment_period, state.steps_since_rescale) : 0;
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"current_loss_scale", &State::scale},
                      StateField{"steps_since_rescale", &State::steps_since_rescale},
                      StateField{"overflows_since_rescale", &State::overflows_since_rescale}};
  }
};

// Wraps around, as TensorFlow's int64 does.
int64_t Times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// Follows the original operation by operation: it computes with counters instead of branching, so
// that a period below 1 multiplies by more than 2 and makes counters negative.
Transition<CsDynamicLossScale::State> CsDynamicLossScale::Next(const Config& config,
                                                               const State& state,
                                                               const ScalerInput& input) {
  State next = state;
  next.steps_since_rescale += 1;
  next.overflows_since_rescale += input.overflow ? 1 : 0;
  const float ratio = static_cast<float>(next.overflows_since_rescale) /
                      static_cast<float>(next.steps_since_rescale);
  const int64_t decrease = ratio > config.overflow_tolerance ? 1 : 0;
  next.overflows_since_rescale *= 1 - decrease;
  next.steps_since_rescale *= 1 - decrease;
  next.scale /= static_cast<float>(1 + decrease);

  const int64_t increase =
      std::max<int64_t>(next.steps_since_rescale - config.increment_period + 1, 0);
  next.scale *= static_cast<float>(increase + 1);
  next.scale = std::max(std::min(next.scale, config.max_loss_scale), config.min_loss_scale);
  next.steps_since_rescale = Times(next.steps_since_rescale, 1 - increase);
  next.overflows_since_rescale = Times(next.overflows_since_rescale, 1 - increase);
  return {.next = next, .skip = input.overflow};
}

const std::vector<ParameterInfo>& CerebrasTfParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"initial_loss_scale", {"init_scale"}, "2^15", "loss scale of the first step", kStart},
      {"increment_period",
       {"steps_per_increase"},
       "2000",
       "steps until the scale doubles",
       kInterval},
      {"multiplier", {}, "2", "only 2 is supported; anything else becomes 2", kFactor},
      {"min_loss_scale", {}, "2^-14", "floor; below 2^-14 is refused", kFloor},
      {"max_loss_scale", {}, "2^15", "ceiling", kCeiling},
      {"overflow_tolerance",
       {},
       "0.05",
       "the scale halves above this fraction of overflows",
       kTolerance},
  };
  return kParameters;
}

// The parameters in the type of Python, in which the original compares and prints them.
struct Arguments {
  double initial_loss_scale;
  int64_t increment_period;
  double multiplier;
  double min_loss_scale;
  double max_loss_scale;
  double overflow_tolerance;
};

Arguments Read(const Settings& settings) {
  const Arguments arguments = {
      settings.Number("initial_loss_scale"), settings.Integer("increment_period"),
      settings.Number("multiplier"),         settings.Number("min_loss_scale"),
      settings.Number("max_loss_scale"),     settings.Number("overflow_tolerance")};
  if (arguments.increment_period < -kMaxPeriod || arguments.increment_period > kMaxPeriod) {
    throw UsageError("cerebras-tf.increment_period", "out of range", "at most 2^53 either way",
                     std::to_string(arguments.increment_period));
  }
  return arguments;
}

void Check(const Arguments& arguments, const std::vector<NamedValue>& parameters) {
  const auto refuse = [&](const std::string& message) {
    throw PolicyRefusal{"ValueError", message, parameters};
  };
  const double float32_max = std::numeric_limits<float>::max();
  if (arguments.min_loss_scale < 0x1p-14) {
    refuse("`min_loss_scale` of " + PythonRepr(arguments.min_loss_scale) + " is too small");
  }
  if (arguments.max_loss_scale > float32_max) {
    refuse("Provided max_loss_scale value of " + PythonRepr(arguments.max_loss_scale) +
           " exceeds FP32_MAX of " + PythonRepr(float32_max));
  }
  // The misspelling is the original's.
  if (arguments.overflow_tolerance < 0) {
    refuse("loss scaling coutner threshold must be set >= 0");
  }
}

std::vector<std::string> Notes(const Arguments& arguments) {
  std::vector<std::string> notes;
  NoteMisprints(arguments.initial_loss_scale, arguments.min_loss_scale, arguments.max_loss_scale,
                notes);
  // numpy.isclose(multiplier, 2), as in the original.
  if (!(std::fabs(arguments.multiplier - 2) <= 1e-8 + 1e-5 * 2)) {
    notes.push_back("multiplier " + PythonRepr(arguments.multiplier) +
                    " is not supported: the scale changes by factors of 2");
  }
  if (arguments.increment_period < 1) {
    notes.push_back(
        "increment_period below 1: the scale grows by factors of 3 and more and counters go "
        "negative");
  } else {
    NoteTolerance(arguments.overflow_tolerance, arguments.increment_period, notes);
  }
  if (arguments.min_loss_scale > arguments.max_loss_scale) {
    notes.push_back(
        "min_loss_scale above max_loss_scale: the scale is min_loss_scale after the first step");
  } else if (arguments.initial_loss_scale < arguments.min_loss_scale ||
             arguments.initial_loss_scale > arguments.max_loss_scale) {
    notes.push_back(
        "initial_loss_scale outside [min_loss_scale, max_loss_scale]: the first step uses it as "
        "it is");
  }
  return notes;
}

ConfiguredScaler MakeCerebrasTf(const ParameterMap& given, std::string_view) {
  const Arguments arguments = Read(Settings{"cerebras-tf", CerebrasTfParameters(), given});
  const std::vector<NamedValue> parameters = {{"initial_loss_scale", arguments.initial_loss_scale},
                                              {"increment_period", arguments.increment_period},
                                              {"multiplier", arguments.multiplier},
                                              {"min_loss_scale", arguments.min_loss_scale},
                                              {"max_loss_scale", arguments.max_loss_scale},
                                              {"overflow_tolerance", arguments.overflow_tolerance}};
  Check(arguments, parameters);
  const CsDynamicLossScale::Config config = {
      .initial_loss_scale = static_cast<float>(arguments.initial_loss_scale),
      .increment_period = arguments.increment_period,
      .min_loss_scale = static_cast<float>(arguments.min_loss_scale),
      .max_loss_scale = static_cast<float>(arguments.max_loss_scale),
      .overflow_tolerance = static_cast<float>(arguments.overflow_tolerance)};
  return {.scaler = LossScaler::Make<CsDynamicLossScale>(config),
          .parameters = parameters,
          .notes = Notes(arguments)};
}

}  // namespace

PolicyInfo CerebrasTfPolicy() {
  return {.name = "cerebras-tf",
          .aliases = {"cerebras_tf"},
          .summary = "CSDynamicLossScale of Cerebras' TensorFlow stack, tolerance 0.05",
          .rules = {.finite_test = FiniteTest::kGlobalNorm, .clip_rule = ClipRule::kTensorFlow},
          .parameters = CerebrasTfParameters(),
          .make = MakeCerebrasTf};
}

}  // namespace dlsim::sim
