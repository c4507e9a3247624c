// SPDX-License-Identifier: Apache-2.0
// The scalers of Cerebras: of PyTorch, as its code and as its documentation has it, and of
// TensorFlow.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "sim/base/quantity.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

// Notes the limits that Cerebras' documentation prints.
void NoteMisprints(double init_scale, double min_loss_scale, double max_loss_scale,
                   std::vector<std::string>& notes) {
  const std::string refused = "the real GradScaler refuses min_loss_scale below 2^-14";
  if (init_scale == 2e15 || max_loss_scale == 2e15 || min_loss_scale == 2e-14) {
    notes.push_back(
        "the documented 2e15 and 2e-14 look like misprints of 2^15 and 2^-14, the defaults of the "
        "code" +
        (min_loss_scale < 0x1p-14 ? "; " + refused : ""));
  } else if (min_loss_scale < 0x1p-14) {
    notes.push_back(refused + "; run as asked");
  }
}

// Notes what a fraction of tolerated overflows means, where the count of steps restarts after
// `most_steps` clean ones. The comparison is in float32, as in the originals.
void NoteTolerance(double overflow_tolerance, int64_t most_steps, std::vector<std::string>& notes) {
  const float tolerance = static_cast<float>(overflow_tolerance);
  if (tolerance >= 1) {
    notes.push_back(
        "overflow_tolerance of 1 or more: overflows never lower the scale, which keeps growing");
    return;
  }
  if (!(tolerance > 0)) return;
  int64_t step = 1;
  while (step < kProjectedSteps && tolerance < 1 / static_cast<float>(step)) ++step;
  if (step > most_steps || step == kProjectedSteps) return;
  notes.push_back("overflow_tolerance is compared with >: a first overflow in step " +
                  std::to_string(step) +
                  " since the last change or later is tolerated, and the scale can double on it");
}

// GradScaler of Cerebras PyTorch 2.10, once with the code's own defaults and once with the numbers
// that Cerebras' documentation prints. Sources: cerebras/pytorch/amp/grad_scaler.py and, for the
// error at the floor, Cerebras/modelzoo trainer/callbacks/precision.py.

using enum ParameterRole;

struct Fp16Type {
  std::string name;
};

ShownValue ReadParameter(const Settings& settings, std::string_view name, Fp16Type& into) {
  into.name = settings.Text(name);
  if (into.name != "float16" && into.name != "bfloat16" && into.name != "cbfloat16") {
    settings.Refuse(name, "unknown type", "float16, bfloat16 or cbfloat16");
  }
  return into.name;
}

struct GradScaler {
  struct Config {
    FixedOrDynamic loss_scale;
    double init_scale = 0;
    int64_t steps_per_increase = 0;
    double min_loss_scale = 0;
    double max_loss_scale = 0;
    double overflow_tolerance = 0;
    Fp16Type fp16_type;
  };
  struct State {
    float scale = 0;
    int64_t steps_since_rescale = 0;
    int64_t overflows_since_rescale = 0;
    int64_t num_skipped_steps = 0;
  };
  // Python's min(max, init); not clamped to the minimum.
  static State Start(const Config& config) {
    const bool below = config.init_scale < config.max_loss_scale;
    return {.scale = static_cast<float>(below ? config.init_scale : config.max_loss_scale)};
  }
  // Comparisons are strict and written as in the original: a NaN scale becomes max_loss_scale.
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    State next = state;
    next.num_skipped_steps += input.overflow ? 1 : 0;
    next.steps_since_rescale += 1;
    next.overflows_since_rescale += input.overflow ? 1 : 0;
    const float ratio = static_cast<float>(next.overflows_since_rescale) /
                        static_cast<float>(next.steps_since_rescale);
    if (static_cast<float>(config.overflow_tolerance) < ratio) {
      next.scale /= 2;
      next.steps_since_rescale = next.overflows_since_rescale = 0;
    }
    // Strict, so the scale grows on step steps_per_increase + 1, overflow or not.
    if (config.steps_per_increase < next.steps_since_rescale) {
      next.scale *= 2;
      next.steps_since_rescale = next.overflows_since_rescale = 0;
    }
    const float max = static_cast<float>(config.max_loss_scale);
    const float min = static_cast<float>(config.min_loss_scale);
    const float non_clamped = next.scale < max ? next.scale : max;
    next.scale = min < non_clamped ? non_clamped : min;
    Transition<State> result = {.next = next, .skip = input.overflow};
    if (non_clamped < next.scale) {
      result.event = ScalerEvent{.type = "ApplianceNanError",
                                 .message =
                                     "Minimum loss scale threshold was reached: the scale "
                                     "before clamping is below min_loss_scale",
                                 .details = {{"non_clamped", HexFloat(non_clamped)}}};
    }
    return result;
  }
  static constexpr std::tuple kFields = {
      StateField{"loss_scale", &State::scale},
      StateField{"steps_since_rescale", &State::steps_since_rescale},
      StateField{"overflows_since_rescale", &State::overflows_since_rescale},
      StateField{"num_skipped_steps", &State::num_skipped_steps}};
};

// Which defaults, and whether a minimum below 2^-14 is refused.
enum class Variant { kDocumented, kCode };

void NoteSurprises(Setup<GradScaler::Config>& setup) {
  const GradScaler::Config& config = setup.config;
  if (config.min_loss_scale > config.max_loss_scale) {
    setup.Note("min_loss_scale above max_loss_scale: every step raises ApplianceNanError");
  } else if (config.init_scale < config.min_loss_scale && config.steps_per_increase > 0) {
    setup.Note(
        "init_scale below min_loss_scale is not clamped at the start: the first step raises "
        "ApplianceNanError");
  }
  setup.NoteIf(config.init_scale > config.max_loss_scale,
               "init_scale above max_loss_scale: the scale starts at max_loss_scale");
  if (config.steps_per_increase < 0) {
    setup.Note("steps_per_increase below 0: every step doubles the scale");
  } else {
    // Printed unsigned, as 2^63 - 1 has a successor there.
    setup.Note("the scale doubles on step " +
               std::to_string(static_cast<uint64_t>(config.steps_per_increase) + 1) +
               " since its last change, one more than steps_per_increase");
  }
  NoteTolerance(config.overflow_tolerance, config.steps_per_increase, setup.notes);
}

// The original's `x if x else default`: replaces what is 0, in the parameters that show, too.
// Returns the names of those that were given so.
std::vector<std::string> FillDefaults(Setup<GradScaler::Config>& setup) {
  GradScaler::Config& config = setup.config;
  const Settings& settings = setup.settings;
  const ParameterMap none;
  const Settings defaults{settings.policy, settings.table, none};
  std::vector<std::string> zeros;
  const auto fill = [&](std::string_view name, auto& value, auto fallback) {
    const bool given = settings.Given(name);
    if (given && value == 0) zeros.emplace_back(name);
    if (!given || value == 0) value = fallback;
    const auto shown = std::ranges::find(setup.parameters, name, &NamedValue::name);
    shown->value = value;
  };
  const bool wide = config.fp16_type.name == "cbfloat16";
  fill("init_scale", config.init_scale, wide ? 0x1p31 : defaults.Number("init_scale"));
  fill("steps_per_increase", config.steps_per_increase, defaults.Integer("steps_per_increase"));
  fill("min_loss_scale", config.min_loss_scale, defaults.Number("min_loss_scale"));
  fill("max_loss_scale", config.max_loss_scale, wide ? 0x1p31 : defaults.Number("max_loss_scale"));
  return zeros;
}

// Returns whether the scale is fixed, after that is set up.
bool FixScale(Setup<GradScaler::Config>& setup) {
  if (setup.config.loss_scale.dynamic()) return false;
  const bool zero = *setup.config.loss_scale.fixed == 0;
  const float scale = zero ? 1.0f : setup.settings.StaticScale("loss_scale");
  setup.parameters.front().value = double{scale};
  setup.scaler = LossScaler::Make<StaticScale>({scale});
  setup.NoteIf(zero, "loss_scale 0 means the default, 1");
  setup.NoteIf(setup.config.fp16_type.name == "cbfloat16",
               "the Model Zoo refuses a static loss scale with cbfloat16");
  return true;
}

void FinishCerebras(Variant variant, Setup<GradScaler::Config>& setup) {
  GradScaler::Config& config = setup.config;
  const bool code = variant == Variant::kCode;
  if (code && !setup.settings.Given("fp16_type") && setup.format == "cb16") {
    config.fp16_type.name = "cbfloat16";
    setup.parameters.back().value = config.fp16_type.name;
  }
  const std::vector<std::string> zeros = FillDefaults(setup);
  setup.NoteIf(config.fp16_type.name == "bfloat16" || setup.format == "bf16",
               "the Model Zoo uses no scaler at all for bfloat16");
  // The original looks at the other parameters only when the scale is dynamic.
  if (FixScale(setup)) return;
  if (code && config.min_loss_scale < 0x1p-14) {
    throw PolicyRefusal{"ValueError", "min_loss_scale too small"};
  }
  if (config.overflow_tolerance < 0) {
    throw PolicyRefusal{"ValueError", "loss scaling counter threshold must be set >= 0"};
  }
  for (const std::string& name : zeros) setup.Note(name + " 0 means the default");
  NoteMisprints(config.init_scale, config.min_loss_scale, config.max_loss_scale, setup.notes);
  NoteSurprises(setup);
}

PolicyInfo PolicyOfCerebras(PolicyInfo info, Variant variant) {
  using Config = GradScaler::Config;
  const bool code = variant == Variant::kCode;
  std::vector<Parameter<Config>> rows = {
      Row(&Config::loss_scale, "loss_scale", {"loss_scaling_factor"}, "dynamic",
          "dynamic, or a number: a scale that never changes and skips nothing; 0 means 1"),
      Row(&Config::init_scale, "init_scale", {"initial_loss_scale"}, code ? "2^15" : "2e15",
          code ? "loss scale of the first step; 2^31 for cbfloat16; 0 means the default"
               : "loss scale of the first step; 0 means the default",
          kStart),
      Row(&Config::steps_per_increase, "steps_per_increase", {"increment_period"}, "2000",
          "the scale doubles after this many steps plus one; 0 means the default", kInterval),
      Row(&Config::min_loss_scale, "min_loss_scale", {}, code ? "2^-14" : "2e-14",
          code ? "floor; below 2^-14 is refused; 0 means the default"
               : "floor; 0 means the default",
          kFloor),
      Row(&Config::max_loss_scale, "max_loss_scale", {}, code ? "2^15" : "2e15",
          code ? "ceiling; 2^31 for cbfloat16; 0 means the default"
               : "ceiling; 0 means the default",
          kCeiling),
      Row(&Config::overflow_tolerance, "overflow_tolerance", {}, "0",
          "the scale halves above this fraction of overflows", kTolerance)};
  if (code) {
    rows.push_back(Row(&Config::fp16_type, "fp16_type", {}, "float16",
                       "float16, bfloat16 or cbfloat16 (the default with format cb16)"));
  }
  info.rules = {.finite_test = FiniteTest::kGlobalNorm};
  return PolicyOf<GradScaler>(std::move(info), std::move(rows),
                              [variant](Setup<Config>& setup) { FinishCerebras(variant, setup); });
}

}  // namespace

PolicyInfo CerebrasPolicy() {
  return PolicyOfCerebras(
      {.name = "cerebras",
       .summary = "Cerebras' documented numbers, read literally: 2e15 down to 2e-14"},
      Variant::kDocumented);
}

PolicyInfo Cerebras210Policy() {
  return PolicyOfCerebras(
      {.name = "cerebras-2.10",
       .aliases = {"cerebras_pytorch"},
       .summary = "GradScaler of Cerebras PyTorch 2.10 with the code's own defaults"},
      Variant::kCode);
}

// CSDynamicLossScale of Cerebras' TensorFlow stack.
// Source: Cerebras/modelzoo, modelzoo/common/tf/optimizers/LossScale.py.

namespace {

// Wraps around, as TensorFlow's int64 does.
int64_t Times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

struct CsDynamicLossScale {
  struct Config {
    AsFloat32 initial_loss_scale;
    int64_t increment_period = 0;
    double multiplier = 0;
    AsFloat32 min_loss_scale;
    AsFloat32 max_loss_scale;
    AsFloat32 overflow_tolerance;
  };
  struct State {
    float scale = 0;
    int64_t steps_since_rescale = 0;
    int64_t overflows_since_rescale = 0;
  };
  // Not clamped: the limits act from the first update on.
  static State Start(const Config& config) { return {config.initial_loss_scale, 0, 0}; }
  // Follows the original operation by operation: it computes with counters instead of branching, so
  // that a period below 1 multiplies by more than 2 and makes counters negative.
  static Transition<State> Next(const Config& config, const State& state,
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
    next.scale =
        std::max<float>(std::min<float>(next.scale, config.max_loss_scale), config.min_loss_scale);
    next.steps_since_rescale = Times(next.steps_since_rescale, 1 - increase);
    next.overflows_since_rescale = Times(next.overflows_since_rescale, 1 - increase);
    return {.next = next, .skip = input.overflow};
  }
  static constexpr std::tuple kFields = {
      StateField{"current_loss_scale", &State::scale},
      StateField{"steps_since_rescale", &State::steps_since_rescale},
      StateField{"overflows_since_rescale", &State::overflows_since_rescale}};
};

// The parameters are compared and printed in the type of Python.
void CheckTf(const CsDynamicLossScale::Config& config) {
  const auto refuse = [](const std::string& message) {
    throw PolicyRefusal{"ValueError", message};
  };
  const double float32_max = std::numeric_limits<float>::max();
  if (config.min_loss_scale.given < 0x1p-14) {
    refuse("`min_loss_scale` of " + PythonRepr(config.min_loss_scale.given) + " is too small");
  }
  if (config.max_loss_scale.given > float32_max) {
    refuse("Provided max_loss_scale value of " + PythonRepr(config.max_loss_scale.given) +
           " exceeds FP32_MAX of " + PythonRepr(float32_max));
  }
  // The misspelling is the original's.
  if (config.overflow_tolerance.given < 0) {
    refuse("loss scaling coutner threshold must be set >= 0");
  }
}

void FinishCerebrasTf(Setup<CsDynamicLossScale::Config>& setup) {
  const CsDynamicLossScale::Config& config = setup.config;
  // Beyond that the int64 products of counters could overflow.
  setup.settings.RequireCount("increment_period", config.increment_period);
  CheckTf(config);
  const double start = config.initial_loss_scale.given;
  const double min = config.min_loss_scale.given, max = config.max_loss_scale.given;
  NoteMisprints(start, min, max, setup.notes);
  // numpy.isclose(multiplier, 2), as in the original.
  setup.NoteIf(!(std::fabs(config.multiplier - 2) <= 1e-8 + 1e-5 * 2),
               "multiplier " + PythonRepr(config.multiplier) +
                   " is not supported: the scale changes by factors of 2");
  if (config.increment_period < 1) {
    setup.Note(
        "increment_period below 1: the scale grows by factors of 3 and more and counters go "
        "negative");
  } else {
    NoteTolerance(config.overflow_tolerance.given, config.increment_period, setup.notes);
  }
  if (min > max) {
    setup.Note(
        "min_loss_scale above max_loss_scale: the scale is min_loss_scale after the first step");
  } else if (start < min || start > max) {
    setup.Note(
        "initial_loss_scale outside [min_loss_scale, max_loss_scale]: the first step uses it as "
        "it is");
  }
}

}  // namespace

PolicyInfo CerebrasTfPolicy() {
  using Config = CsDynamicLossScale::Config;
  return PolicyOf<CsDynamicLossScale>(
      {.name = "cerebras-tf",
       .aliases = {"cerebras_tf"},
       .summary = "CSDynamicLossScale of Cerebras' TensorFlow stack, tolerance 0.05",
       .rules = {.finite_test = FiniteTest::kGlobalNorm, .clip_rule = ClipRule::kTensorFlow}},
      {Row(&Config::initial_loss_scale, "initial_loss_scale", {"init_scale"}, "2^15",
           "loss scale of the first step", kStart),
       Row(&Config::increment_period, "increment_period", {"steps_per_increase"}, "2000",
           "steps until the scale doubles", kInterval),
       Row(&Config::multiplier, "multiplier", {}, "2",
           "only 2 is supported; anything else becomes 2", kFactor),
       Row(&Config::min_loss_scale, "min_loss_scale", {}, "2^-14", "floor; below 2^-14 is refused",
           kFloor),
       Row(&Config::max_loss_scale, "max_loss_scale", {}, "2^15", "ceiling", kCeiling),
       Row(&Config::overflow_tolerance, "overflow_tolerance", {}, "0.05",
           "the scale halves above this fraction of overflows", kTolerance)},
      FinishCerebrasTf);
}

}  // namespace dlsim::sim
