// SPDX-License-Identifier: Apache-2.0
// torch.amp.GradScaler: its rule since PyTorch 2.1 and the one of PyTorch 1.13, which can reach
// infinity; then those that extend it or grew out of it, in NeMo, fairseq2, icefall and fairscale.
// Sources: aten/src/ATen/native/cuda/AmpKernels.cu and torch/cuda/amp/grad_scaler.py.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "sim/base/quantity.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using enum ParameterRole;

enum class TorchGrowth : uint8_t { kAlways, kIfFinite };

// The kernel multiplies the float32 scale by a double and rounds the product to float32.
float Times(float scale, double factor) { return static_cast<float>(scale * factor); }

// Wraps around as the kernel's int does, on an interval that is never reached.
int32_t Plus(int32_t tracker, int32_t step) {
  return static_cast<int32_t>(static_cast<uint32_t>(tracker) + static_cast<uint32_t>(step));
}

struct GradScaler {
  struct Config {
    double init_scale = 0;
    double growth_factor = 0;
    double backoff_factor = 0;
    KernelInt growth_interval;
    bool enabled = true;
    TorchGrowth growth = TorchGrowth::kIfFinite;
  };
  struct State {
    float scale = 0;
    int32_t growth_tracker = 0;
  };
  static State Start(const Config& config) { return {static_cast<float>(config.init_scale), 0}; }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    if (input.overflow) {
      return {.next = {Times(state.scale, config.backoff_factor), 0}, .skip = true};
    }
    const int32_t clean_steps = Plus(state.growth_tracker, 1);
    if (clean_steps != config.growth_interval) return {.next = {state.scale, clean_steps}};
    const float grown = Times(state.scale, config.growth_factor);
    const bool accept = config.growth == TorchGrowth::kAlways || std::isfinite(grown);
    return {.next = {accept ? grown : state.scale, 0}};
  }
  static constexpr std::tuple kFields = {StateField{"scale", &State::scale},
                                         StateField{"growth_tracker", &State::growth_tracker}};
};

// The assertions of GradScaler's constructor.
void CheckFactors(double growth_factor, double backoff_factor) {
  if (!(growth_factor > 1.0)) {
    throw PolicyRefusal{"AssertionError", "The growth factor must be > 1.0."};
  }
  if (!(backoff_factor < 1.0)) {
    throw PolicyRefusal{"AssertionError", "The backoff factor must be < 1.0."};
  }
}

// And of the first call of scale(), which makes a float32 tensor: that takes no larger number.
void CheckAsTorch(double init_scale, double growth_factor, double backoff_factor) {
  CheckFactors(growth_factor, backoff_factor);
  if (std::fabs(init_scale) <= std::numeric_limits<float>::max()) return;
  throw PolicyRefusal{"RuntimeError", "value cannot be converted to type float without overflow"};
}

// Notes an interval that the kernel's int cannot hold or never reaches.
void NoteInterval(const std::string& name, KernelInt interval, std::vector<std::string>& notes) {
  const int32_t held = interval;
  if (held != interval.given) {
    notes.push_back(name + " " + std::to_string(interval.given) +
                    " does not fit the kernel's int and acts as " + std::to_string(held));
  }
  if (held < 1) notes.push_back(name + " below 1: the scale never grows");
}

void FinishTorch(Setup<GradScaler::Config>& setup) {
  const GradScaler::Config& config = setup.config;
  if (!config.enabled) {
    setup.scaler = LossScaler::Make<StaticScale>({1});
    return;
  }
  CheckAsTorch(config.init_scale, config.growth_factor, config.backoff_factor);
  NoteInterval("growth_interval", config.growth_interval, setup.notes);
  const float start = GradScaler::Start(config).scale;
  NoteDeadStart("init_scale", start, setup.notes);
  if (config.growth == TorchGrowth::kAlways && config.growth_interval >= 1 && start > 0) {
    const double infinity = std::numeric_limits<double>::infinity();
    NoteNoCeiling(CleanStepsToReach<GradScaler>(config, infinity), setup.notes);
  }
  NoteZero(OverflowsToZero<GradScaler>(config), setup.notes);
}

PolicyInfo PolicyOfTorch(PolicyInfo info, TorchGrowth growth) {
  using Config = GradScaler::Config;
  info.rules = {.finite_test = FiniteTest::kElementwise, .optimizer_skip = OptimizerSkip::kOwn};
  return PolicyOf<GradScaler>(
      std::move(info),
      {Row(&Config::init_scale, "init_scale", {"initial_loss_scale"}, "65536",
           "loss scale of the first step", kStart),
       Row(&Config::growth_factor, "growth_factor", {}, "2",
           "multiplies the scale after growth_interval clean steps", kGrowth),
       Row(&Config::backoff_factor, "backoff_factor", {}, "0.5",
           "multiplies the scale on an overflow", kBackoff),
       Row(&Config::growth_interval, "growth_interval", {}, "2000",
           "consecutive clean steps until the scale grows; 0: never", kInterval),
       Row(&Config::enabled, "enabled", {}, "true",
           "false: the scale is 1 and no step is skipped")},
      [growth](Setup<Config>& setup) {
        setup.config.growth = growth;
        FinishTorch(setup);
      });
}

}  // namespace

PolicyInfo TorchPolicy() {
  return PolicyOfTorch(
      {.name = "torch",
       .aliases = {"torch_new"},
       .summary = "torch.amp.GradScaler since PyTorch 2.1; keeps its scale finite"},
      TorchGrowth::kIfFinite);
}

PolicyInfo Torch113Policy() {
  return PolicyOfTorch(
      {.name = "torch-1.13",
       .aliases = {"torch_1_13"},
       .summary = "torch.cuda.amp.GradScaler of PyTorch 1.13; its scale can grow to infinity"},
      TorchGrowth::kAlways);
}

// The CUDA kernel update_scale_hysteresis of apex under the GradScaler of NeMo, which extends
// torch's. Sources: NVIDIA/apex, csrc/update_scale_hysteresis.cu; NVIDIA/NeMo, nlp_overrides.py.

namespace {

struct HysteresisScaler {
  struct Config : GradScaler::Config {
    int32_t hysteresis = 0;
  };
  struct State : GradScaler::State {
    int32_t hysteresis_tracker = 0;
  };
  static State Start(const Config& config) {
    return {GradScaler::Start(config), config.hysteresis};
  }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    Transition<GradScaler::State> torch = GradScaler::Next(config, state, input);
    const int32_t used = input.overflow ? Plus(state.hysteresis_tracker, -1) : config.hysteresis;
    if (input.overflow && used > 0) torch.next.scale = state.scale;
    return {.next = {torch.next, used}, .skip = torch.skip};
  }
  static constexpr auto kFields =
      std::tuple_cat(GradScaler::kFields,
                     std::tuple{StateField{"hysteresis_tracker", &State::hysteresis_tracker}});
};

}  // namespace

PolicyInfo ApexHysteresisPolicy() {
  using Config = HysteresisScaler::Config;
  return PolicyOf<HysteresisScaler>(
      {.name = "apex-hysteresis",
       .aliases = {"apex_update_scale_hysteresis", "nemo"},
       .summary = "apex's hysteresis kernel under NeMo's GradScaler; overflows in a row count",
       .rules = {.finite_test = FiniteTest::kElementwise, .optimizer_skip = OptimizerSkip::kOwn}},
      {Row(&Config::init_scale, "init_scale", {"initial_loss_scale"}, "65536",
           "loss scale of the first step", kStart),
       Row(&Config::growth_factor, "growth_factor", {}, "2",
           "multiplies the scale after growth_interval clean steps", kGrowth),
       Row(&Config::backoff_factor, "backoff_factor", {}, "0.5",
           "multiplies the scale when hysteresis is used up", kBackoff),
       Row(&Config::growth_interval, "growth_interval", {}, "2000",
           "consecutive clean steps until the scale grows; 0: never", kInterval),
       Row(&Config::hysteresis, "hysteresis", {}, "1", "overflows in a row until the scale falls",
           kOverflows)},
      [](Setup<Config>& setup) {
        const Config& config = setup.config;
        CheckAsTorch(config.init_scale, config.growth_factor, config.backoff_factor);
        NoteInterval("growth_interval", config.growth_interval, setup.notes);
        setup.NoteIf(config.hysteresis > 1,
                     "hysteresis counts overflows in a row: one clean step restores it, and "
                     "without one every overflow from number " +
                         std::to_string(config.hysteresis) + " on lowers the scale");
        setup.NoteIf(config.hysteresis < 1,
                     "hysteresis below 1 acts as 1: every overflow lowers the scale");
        NoteDeadStart("init_scale", HysteresisScaler::Start(config).scale, setup.notes);
        NoteZero(OverflowsToZero<HysteresisScaler>(config), setup.notes);
      });
}

// StandardFloat16LossScaler of fairseq2: torch's GradScaler, and a trainer that stops where the
// scale falls below a minimum. Sources: facebookresearch/fairseq2, optim/fp16_loss_scaler.py and
// trainer.py.

namespace {

// Python's math.isclose with the tolerances of the original.
bool IsClose(double a, double b) {
  if (a == b) return true;
  if (!std::isfinite(a) || !std::isfinite(b)) return false;
  return std::fabs(a - b) <= std::max(1.3e-6 * std::max(std::fabs(a), std::fabs(b)), 1e-5);
}

struct Fairseq2Scaler : GradScaler {
  struct Config : GradScaler::Config {
    double min_scale = 0;
  };
  // A fall of less than 1e-5 passes for no change, so that a scale as small as that gets below the
  // minimum unseen.
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    Transition<State> transition = GradScaler::Next(config, state, input);
    float& scale = transition.next.scale;
    if (IsClose(scale, state.scale) || scale > state.scale || !(scale < config.min_scale)) {
      return transition;
    }
    scale = static_cast<float>(config.min_scale);
    transition.event =
        FatalEvent("MinimumLossScaleReachedError", "Loss is scaled down to minimum.");
    return transition;
  }
};

}  // namespace

PolicyInfo Fairseq2Policy() {
  using Config = Fairseq2Scaler::Config;
  return PolicyOf<Fairseq2Scaler>(
      {.name = "fairseq2",
       .summary = "fairseq2's StandardFloat16LossScaler: torch's rule; stops at min_scale",
       .rules = {.finite_test = FiniteTest::kElementwise, .optimizer_skip = OptimizerSkip::kOwn}},
      {Row(&Config::init_scale, "init_scale", {"initial_loss_scale"}, "65536",
           "loss scale of the first step", kStart),
       Row(&Config::growth_factor, "scale_factor", {}, "2",
           "multiplies the scale on growth, divides it otherwise", kFactor),
       Row(&Config::growth_interval, "scale_window", {}, "2000",
           "consecutive clean steps until the scale grows", kInterval),
       Row(&Config::min_scale, "min_scale", {"min_loss_scale"}, "0.0001",
           "a fall below this stops the training", kFloor)},
      [](Setup<Config>& setup) {
        Config& config = setup.config;
        if (config.growth_factor == 0) {
          throw PolicyRefusal{"ZeroDivisionError", "float division by zero"};
        }
        config.backoff_factor = 1 / config.growth_factor;
        CheckAsTorch(config.init_scale, config.growth_factor, config.backoff_factor);
        NoteInterval("scale_window", config.growth_interval, setup.notes);
        NoteDeadStart("init_scale", Fairseq2Scaler::Start(config).scale, setup.notes);
        setup.NoteIf(
            !setup.settings.Given("init_scale") && !setup.settings.Given("scale_window"),
            "these are the defaults of the class; fairseq2's recipes start at 128 and have a "
            "scale_window of 2^14 / (data-parallel workers * accumulated steps)");
      });
}

// torch's GradScaler as the recipes of icefall train with it: a low scale is doubled by the
// training loop, and a tiny one stops it. Source: k2-fsa/icefall,
// egs/librispeech/ASR/zipformer/train.py.

namespace {

constexpr double kTooSmall = 1e-5;

struct IcefallScaler {
  struct Config : GradScaler::Config {
    double below_25 = 0;  // doubles a scale below this after every 25th batch, and so on
    double below_100 = 0;
    double below_400 = 0;
  };
  struct State : GradScaler::State {
    int64_t batch_idx = 0;
  };
  static State Start(const Config& config) { return {GradScaler::Start(config), 0}; }
  static bool IsDoubled(const Config& config, double scale, int64_t batch_idx) {
    return (batch_idx % 25 == 0 && scale < config.below_25) ||
           (batch_idx % 100 == 0 && scale < config.below_100) ||
           (batch_idx % 400 == 0 && scale < config.below_400);
  }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    const Transition<GradScaler::State> torch = GradScaler::Next(config, state, input);
    Transition<State> transition = {.next = {torch.next, state.batch_idx + 1}, .skip = torch.skip};
    const double scale = torch.next.scale;
    if (scale < kTooSmall) {
      transition.event =
          FatalEvent("RuntimeError", "grad_scale is too small, exiting: " + PythonRepr(scale));
    } else if (IsDoubled(config, scale, state.batch_idx)) {
      transition.next.scale = static_cast<float>(scale * 2);  // growth_tracker goes on
    }
    return transition;
  }
  static constexpr auto kFields =
      std::tuple_cat(GradScaler::kFields, std::tuple{StateField{"batch_idx", &State::batch_idx}});
};

}  // namespace

PolicyInfo IcefallPolicy() {
  using Config = IcefallScaler::Config;
  return PolicyOf<IcefallScaler>(
      {.name = "icefall",
       .summary = "icefall: torch's rule; the training loop doubles a low scale"},
      {Row(&Config::init_scale, "init_scale", {"initial_loss_scale"}, "1",
           "loss scale of the first step", kStart),
       Row(&Config::growth_factor, "growth_factor", {}, "2",
           "multiplies the scale after growth_interval clean steps", kGrowth),
       Row(&Config::backoff_factor, "backoff_factor", {}, "0.5",
           "multiplies the scale on an overflow", kBackoff),
       Row(&Config::growth_interval, "growth_interval", {}, "2000",
           "consecutive clean steps until the scale grows", kInterval),
       Row(&Config::below_25, "below_25", {}, "2", "each 25th batch doubles a scale below this"),
       Row(&Config::below_100, "below_100", {}, "8", "each 100th batch doubles a scale below this"),
       Row(&Config::below_400, "below_400", {}, "32",
           "each 400th batch doubles a scale below this")},
      [](Setup<Config>& setup) {
        const Config& config = setup.config;
        CheckAsTorch(config.init_scale, config.growth_factor, config.backoff_factor);
        NoteInterval("growth_interval", config.growth_interval, setup.notes);
        setup.Note(
            "the training loop doubles a low scale after every 25th, 100th or 400th batch, and a "
            "scale below 1e-5 stops it");
      });
}

// LayerwiseGradientScaler of fairscale: the rule of one scaled layer, in Python floats.
// Source: facebookresearch/fairscale, fairscale/optim/layerwise_gradient_scaler.py.

namespace {

struct LayerScaler {
  struct Config {
    double init_scale = 0;
    double growth_factor = 0;
    double backoff_factor = 0;
    int64_t growth_interval = 0;
    double min_scale = 0;
    double max_scale = 0;
  };
  struct State {
    double scaling_factor = 0;
    int64_t growth_tracker = 0;
  };
  // Not clamped: the limits act from the first change on.
  static State Start(const Config& config) { return {config.init_scale, 0}; }
  // Python's max(min_scale, min(scale, max_scale)), which keeps the first of what does not compare.
  static double Clamp(const Config& config, double scale) {
    const double at_most = config.max_scale < scale ? config.max_scale : scale;
    return at_most > config.min_scale ? at_most : config.min_scale;
  }
  static Transition<State> Next(const Config& config, const State& state,
                                const ScalerInput& input) {
    if (input.overflow) {
      return {.next = {Clamp(config, config.backoff_factor * state.scaling_factor), 0},
              .skip = true};
    }
    const int64_t clean_steps = state.growth_tracker + 1;
    if (clean_steps != config.growth_interval) return {.next = {state.scaling_factor, clean_steps}};
    return {.next = {Clamp(config, config.growth_factor * state.scaling_factor), 0}};
  }
  static constexpr std::tuple kFields = {StateField{"scaling_factor", &State::scaling_factor},
                                         StateField{"growth_tracker", &State::growth_tracker}};
};

}  // namespace

// The original tests the gradients in step(), after unscale().
PolicyInfo FairscalePolicy() {
  using Config = LayerScaler::Config;
  return PolicyOf<LayerScaler>(
      {.name = "fairscale",
       .aliases = {"fairscale_layerwise", "fairscale_layerwise_1layer"},
       .summary = "fairscale's LayerwiseGradientScaler; a scale for each layer",
       .rules = {.finite_test = FiniteTest::kUnscaledElementwise,
                 .granularity = ScaleGranularity::kLayer},
       .checkpoint = Kept::kNothing},
      {Row(&Config::init_scale, "init_scale", {"initial_loss_scale"}, "2^10",
           "loss scale of the first step, the same for each layer", kStart),
       Row(&Config::growth_factor, "growth_factor", {}, "2",
           "multiplies the scale after growth_interval clean steps", kGrowth),
       Row(&Config::backoff_factor, "backoff_factor", {}, "0.5",
           "multiplies the scale on an overflow in the layer", kBackoff),
       Row(&Config::growth_interval, "growth_interval", {}, "10000",
           "consecutive clean steps of the layer until it grows", kInterval),
       Row(&Config::min_scale, "min_scale", {}, "2^-126", "floor", kFloor),
       Row(&Config::max_scale, "max_scale", {}, "0x1.fffffep+127", "ceiling", kCeiling)},
      [](Setup<Config>& setup) {
        const Config& config = setup.config;
        CheckFactors(config.growth_factor, config.backoff_factor);
        setup.NoteIf(config.growth_interval < 1, "growth_interval below 1: the scale never grows");
        const bool crossed = config.min_scale > config.max_scale;
        const bool outside =
            config.init_scale < config.min_scale || config.init_scale > config.max_scale;
        setup.NoteIf(crossed,
                     "min_scale above max_scale: the first change sets the scale to min_scale");
        setup.NoteIf(
            outside && !crossed,
            "init_scale outside [min_scale, max_scale] is not clamped before the first change");
        NoteCeiling("max_scale", config.max_scale,
                    CleanStepsToReach<LayerScaler>(config, config.max_scale), setup.notes);
      });
}

}  // namespace dlsim::sim
