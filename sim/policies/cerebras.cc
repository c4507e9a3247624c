// SPDX-License-Identifier: Apache-2.0
// The scalers of Cerebras: of PyTorch, as its code and as its documentation has it, and of
// TensorFlow.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/policies/policies.h"
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

struct GradScaler {
  struct Config {
    double init_scale = 0;
    int64_t steps_per_increase = 0;
    double min_loss_scale = 0;
    double max_loss_scale = 0;
    double overflow_tolerance = 0;
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
  static double Scale(const State& state) { return state.scale; }
  static Transition<State> Next(const Config& config, const State& state, const ScalerInput& input);
  static int64_t AlikeSteps(const Config& config, const State& state) {
    // Without overflows their share stays at 0.
    const bool tolerates = config.overflow_tolerance >= 0 && state.overflows_since_rescale == 0;
    return tolerates ? AlikeUntil(config.steps_per_increase, state.steps_since_rescale) : 0;
  }
  static constexpr auto Fields() {
    return std::tuple{StateField{"loss_scale", &State::scale},
                      StateField{"steps_since_rescale", &State::steps_since_rescale},
                      StateField{"overflows_since_rescale", &State::overflows_since_rescale},
                      StateField{"num_skipped_steps", &State::num_skipped_steps}};
  }
};

ScalerEvent FloorEvent(float non_clamped) {
  return {.type = "ApplianceNanError",
          .message =
              "Minimum loss scale threshold was reached: the scale before clamping is below "
              "min_loss_scale",
          .details = {{"non_clamped", HexFloat(non_clamped)}}};
}

// Comparisons are strict and written as in the original: a NaN scale becomes max_loss_scale.
Transition<GradScaler::State> GradScaler::Next(const Config& config, const State& state,
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
  if (non_clamped < next.scale) result.event = FloorEvent(non_clamped);
  return result;
}

// Which defaults, and whether a minimum below 2^-14 is refused.
enum class Variant { kDocumented, kCode };

std::vector<ParameterInfo> Parameters(Variant variant) {
  const bool code = variant == Variant::kCode;
  std::vector<ParameterInfo> parameters = {
      {"loss_scale",
       {"loss_scaling_factor"},
       "dynamic",
       "dynamic, or a number: a scale that never changes and skips nothing; 0 means 1"},
      {"init_scale",
       {"initial_loss_scale"},
       code ? "2^15" : "2e15",
       code ? "loss scale of the first step; 2^31 for cbfloat16; 0 means the default"
            : "loss scale of the first step; 0 means the default",
       kStart},
      {"steps_per_increase",
       {"increment_period"},
       "2000",
       "the scale doubles after this many steps plus one; 0 means the default",
       kInterval},
      {"min_loss_scale",
       {},
       code ? "2^-14" : "2e-14",
       code ? "floor; below 2^-14 is refused; 0 means the default" : "floor; 0 means the default",
       kFloor},
      {"max_loss_scale",
       {},
       code ? "2^15" : "2e15",
       code ? "ceiling; 2^31 for cbfloat16; 0 means the default" : "ceiling; 0 means the default",
       kCeiling},
      {"overflow_tolerance",
       {},
       "0",
       "the scale halves above this fraction of overflows",
       kTolerance},
  };
  if (code) {
    parameters.push_back({"fp16_type",
                          {},
                          "float16",
                          "float16, bfloat16 or cbfloat16 (the default with format cb16)"});
  }
  return parameters;
}

const std::vector<ParameterInfo>& DocumentedParameters() {
  static const std::vector<ParameterInfo> kParameters = Parameters(Variant::kDocumented);
  return kParameters;
}

const std::vector<ParameterInfo>& CodeParameters() {
  static const std::vector<ParameterInfo> kParameters = Parameters(Variant::kCode);
  return kParameters;
}

std::string Fp16Type(const Settings& settings, std::string_view format) {
  if (!settings.Given("fp16_type") && format == "cb16") return "cbfloat16";
  const std::string type = settings.Text("fp16_type");
  if (type == "float16" || type == "bfloat16" || type == "cbfloat16") return type;
  throw UsageError("cerebras-2.10.fp16_type", "unknown type", "float16, bfloat16 or cbfloat16",
                   Quoted(type));
}

// The original's `x if x else default`.
double OrDefault(double value, double fallback) { return value == 0 ? fallback : value; }

GradScaler::Config ReadConfig(const Settings& settings, const std::string& fp16_type) {
  const ParameterMap none;
  const Settings defaults{settings.policy, settings.table, none};
  const auto number = [&](std::string_view name, bool wide) {
    const double fallback = wide ? 0x1p31 : defaults.Number(name);
    return settings.Given(name) ? OrDefault(settings.Number(name), fallback) : fallback;
  };
  const bool wide = fp16_type == "cbfloat16";
  const int64_t steps = settings.Integer("steps_per_increase");
  return {.init_scale = number("init_scale", wide),
          .steps_per_increase = steps == 0 ? defaults.Integer("steps_per_increase") : steps,
          .min_loss_scale = number("min_loss_scale", false),
          .max_loss_scale = number("max_loss_scale", wide),
          .overflow_tolerance = settings.Number("overflow_tolerance")};
}

void NoteDefaults(const Settings& settings, std::vector<std::string>& notes) {
  for (const std::string_view name :
       {"init_scale", "steps_per_increase", "min_loss_scale", "max_loss_scale"}) {
    if (!settings.Given(name) || settings.Number(name) != 0) continue;
    notes.push_back(std::string(name).append(" 0 means the default"));
  }
}

void NoteSurprises(const GradScaler::Config& config, std::vector<std::string>& notes) {
  if (config.min_loss_scale > config.max_loss_scale) {
    notes.push_back("min_loss_scale above max_loss_scale: every step raises ApplianceNanError");
  } else if (config.init_scale < config.min_loss_scale && config.steps_per_increase > 0) {
    notes.push_back(
        "init_scale below min_loss_scale is not clamped at the start: the first step raises "
        "ApplianceNanError");
  }
  if (config.init_scale > config.max_loss_scale) {
    notes.push_back("init_scale above max_loss_scale: the scale starts at max_loss_scale");
  }
  if (config.steps_per_increase < 0) {
    notes.push_back("steps_per_increase below 0: every step doubles the scale");
  } else {
    // Printed unsigned, as 2^63 - 1 has a successor there.
    notes.push_back("the scale doubles on step " +
                    std::to_string(static_cast<uint64_t>(config.steps_per_increase) + 1) +
                    " since its last change, one more than steps_per_increase");
  }
  NoteTolerance(config.overflow_tolerance, config.steps_per_increase, notes);
}

void NoteStatic(const Settings& settings, const std::string& fp16_type,
                std::vector<std::string>& notes) {
  if (settings.Number("loss_scale") == 0) notes.push_back("loss_scale 0 means the default, 1");
  if (fp16_type == "cbfloat16") {
    notes.push_back("the Model Zoo refuses a static loss scale with cbfloat16");
  }
}

std::vector<NamedValue> Describe(const Settings& settings, const GradScaler::Config& config,
                                 const std::string& fp16_type, float static_scale) {
  NamedValue loss_scale = {"loss_scale", "dynamic"};
  if (static_scale != 0) loss_scale.value = double{static_scale};
  std::vector<NamedValue> parameters = {loss_scale,
                                        {"init_scale", config.init_scale},
                                        {"steps_per_increase", config.steps_per_increase},
                                        {"min_loss_scale", config.min_loss_scale},
                                        {"max_loss_scale", config.max_loss_scale},
                                        {"overflow_tolerance", config.overflow_tolerance}};
  if (parameters.size() < settings.table.size()) parameters.push_back({"fp16_type", fp16_type});
  return parameters;
}

// Returns 0 for "dynamic".
float ReadFixedScale(const Settings& settings) {
  if (settings.Text("loss_scale") == "dynamic") return 0;
  return settings.Number("loss_scale") == 0 ? 1.0f : settings.StaticScale("loss_scale");
}

ConfiguredScaler MakeCerebras(const Settings& settings, Variant variant, std::string_view format) {
  const bool code = variant == Variant::kCode;
  const std::string fp16_type = code ? Fp16Type(settings, format) : "";
  const GradScaler::Config config = ReadConfig(settings, fp16_type);
  const float static_scale = ReadFixedScale(settings);
  const std::vector<NamedValue> parameters = Describe(settings, config, fp16_type, static_scale);
  std::vector<std::string> notes;
  if (fp16_type == "bfloat16" || format == "bf16") {
    notes.push_back("the Model Zoo uses no scaler at all for bfloat16");
  }
  // The original looks at the other parameters only when the scale is dynamic.
  if (static_scale != 0) {
    NoteStatic(settings, fp16_type, notes);
    return {LossScaler::Make<StaticScale>({static_scale}), parameters, notes};
  }
  if (code && config.min_loss_scale < 0x1p-14) {
    throw PolicyRefusal{"ValueError", "min_loss_scale too small", parameters};
  }
  if (config.overflow_tolerance < 0) {
    throw PolicyRefusal{"ValueError", "loss scaling counter threshold must be set >= 0",
                        parameters};
  }
  NoteDefaults(settings, notes);
  NoteMisprints(config.init_scale, config.min_loss_scale, config.max_loss_scale, notes);
  NoteSurprises(config, notes);
  return {LossScaler::Make<GradScaler>(config), parameters, notes};
}

}  // namespace

PolicyInfo CerebrasPolicy() {
  return {.name = "cerebras",
          .aliases = {},
          .summary = "Cerebras' documented numbers, read literally: 2e15 down to 2e-14",
          .rules = {.finite_test = FiniteTest::kGlobalNorm},
          .parameters = DocumentedParameters(),
          .make = [](const ParameterMap& given, std::string_view format) {
            return MakeCerebras({"cerebras", DocumentedParameters(), given}, Variant::kDocumented,
                                format);
          }};
}

PolicyInfo Cerebras210Policy() {
  return {.name = "cerebras-2.10",
          .aliases = {"cerebras_pytorch"},
          .summary = "GradScaler of Cerebras PyTorch 2.10 with the code's own defaults",
          .rules = {.finite_test = FiniteTest::kGlobalNorm},
          .parameters = CodeParameters(),
          .make = [](const ParameterMap& given, std::string_view format) {
            return MakeCerebras({"cerebras-2.10", CodeParameters(), given}, Variant::kCode, format);
          }};
}

// CSDynamicLossScale of Cerebras' TensorFlow stack.
// Source: Cerebras/modelzoo, modelzoo/common/tf/optimizers/LossScale.py.

namespace {

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
