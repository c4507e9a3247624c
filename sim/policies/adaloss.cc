// SPDX-License-Identifier: Apache-2.0
// Adaptive loss scaling: a factor for each gradient from its own spread (Zhao et al., arXiv
// 1910.12385). Source: ada_loss/core.py and ada_loss/chainer_impl of kumasento/gradient-scaling,
// method "approx_range".
#include <algorithm>
#include <bit>
#include <boost/math/special_functions/erf.hpp>
#include <cmath>
#include <numbers>
#include <tuple>

#include "dlsim/codec.h"
#include "dlsim/error.h"
#include "sim/policies/policies.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

enum class Bound { kNone, kHeuristic };
enum class Rounded { kNo, kToPowerOfTwo };

struct AdaLoss {
  struct Config {
    float u_min = 0;
    float u_max = 0;
    double n_uf_threshold = 0;  // standard deviations within which n_uf of a normal gradient lies
    Bound bound = Bound::kHeuristic;
    float scale_upper_bound = 0;
    float accum_upper_bound = 0;
    Rounded rounded = Rounded::kToPowerOfTwo;
  };
  struct State {
    float scale = 1;
  };
  static State Start(const Config&) { return {}; }
  static double Scale(const State& state) { return state.scale; }
  static void Prepare(const Config& config, State& state, const GradientSpread& spread);
  static Transition<State> Next(const Config&, const State& state, const ScalerInput&) {
    return {.next = state};
  }
  static constexpr auto Fields() { return std::tuple{StateField{"loss_scale", &State::scale}}; }
};

float AsFp16(float value) {
  static const CodecSpec fp16 = MakeCodecSpec({.format = ParseFormat("fp16").format});
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>(Decode(fp16, Encode(fp16, Rounding::kNearestEven, bits).code));
}

// Types are NumPy's: the threshold is float64 and makes the quotient float64.
float UnboundScale(const AdaLoss::Config& config, const GradientSpread& spread) {
  const float sigma = static_cast<float>(spread.standard_deviation);
  if (sigma == 0) return 1;
  const double wanted = double{config.u_min} / (config.n_uf_threshold * double{sigma});
  const double upper = double{config.u_max / spread.absmax};
  return static_cast<float>(std::min(std::max(wanted, 1.0), upper));
}

void AdaLoss::Prepare(const Config& config, State& state, const GradientSpread& spread) {
  float scale = UnboundScale(config, spread);
  if (config.bound == Bound::kHeuristic) {
    scale = std::min({scale, config.accum_upper_bound, config.scale_upper_bound});
  }
  if (config.rounded == Rounded::kToPowerOfTwo) {
    // The float32 logarithm of the original may round up to the next power of two.
    scale = std::exp2(std::floor(std::log2(scale)));
  }
  state.scale = AsFp16(scale);
}

const std::vector<ParameterInfo>& AdalossParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"u_min", {}, "6e-8", "magnitudes below this underflow"},
      {"u_max", {"max"}, "65504", "magnitudes above this overflow"},
      {"n_uf_threshold", {"n_uf"}, "1e-3", "share of a normal gradient that may underflow"},
      {"power_of_two", {}, "true", "round the factor down to a power of two"},
      {"use_bound", {}, "true", "apply the two bounds below"},
      {"scale_upper_bound", {}, "16", "largest factor of one gradient"},
      {"accum_upper_bound", {}, "1024", "largest product of factors; here of one"},
  };
  return kParameters;
}

double ReadPositiveNumber(const Settings& settings, std::string_view name) {
  const double value = settings.Number(name);
  if (static_cast<float>(value) > 0) return value;
  throw UsageError(std::string("adaloss.").append(name), "not above 0", "a positive float32 number",
                   Quoted(settings.Text(name)));
}

double ReadShare(const Settings& settings, std::string_view name) {
  const double value = settings.Number(name);
  if (value > 0 && value < 1) return value;
  throw UsageError(std::string("adaloss.").append(name), "not a share", "a number above 0, below 1",
                   Quoted(settings.Text(name)));
}

std::vector<std::string> Notes(const AdaLoss::Config& config, std::string_view format) {
  std::vector<std::string> notes;
  if (!format.empty() && format != "fp16") {
    notes.push_back("u_min and u_max default to the limits of fp16, and the factor is an fp16");
  }
  if (config.bound == Bound::kHeuristic) {
    notes.push_back("use_bound limits every factor to scale_upper_bound");
  } else {
    notes.push_back(
        "without use_bound a small gradient's factor can be too large for fp16: infinite");
  }
  return notes;
}

ConfiguredScaler MakeAdaloss(const ParameterMap& given, std::string_view format) {
  const Settings settings{"adaloss", AdalossParameters(), given};
  const auto positive = [&](std::string_view name) { return ReadPositiveNumber(settings, name); };
  const double n_uf = ReadShare(settings, "n_uf_threshold");
  const bool power_of_two = settings.Bool("power_of_two");
  const bool use_bound = settings.Bool("use_bound");
  const AdaLoss::Config config = {
      .u_min = static_cast<float>(positive("u_min")),
      .u_max = static_cast<float>(positive("u_max")),
      .n_uf_threshold = boost::math::erf_inv(n_uf) * std::numbers::sqrt2,
      .bound = use_bound ? Bound::kHeuristic : Bound::kNone,
      .scale_upper_bound = AsFp16(static_cast<float>(positive("scale_upper_bound"))),
      .accum_upper_bound = AsFp16(static_cast<float>(positive("accum_upper_bound"))),
      .rounded = power_of_two ? Rounded::kToPowerOfTwo : Rounded::kNo};
  return {.scaler = LossScaler::Make<AdaLoss>(config),
          .parameters = {{"u_min", positive("u_min")},
                         {"u_max", positive("u_max")},
                         {"n_uf_threshold", n_uf},
                         {"power_of_two", power_of_two},
                         {"use_bound", use_bound},
                         {"scale_upper_bound", positive("scale_upper_bound")},
                         {"accum_upper_bound", positive("accum_upper_bound")}},
          .notes = Notes(config, format)};
}

}  // namespace

PolicyInfo AdaLossPolicy() {
  return {
      .name = "adaloss",
      .aliases = {"ada-loss", "ada_loss"},
      .summary = "adaptive loss scaling: each gradient's factor from its own spread",
      .rules = {.finite_test = FiniteTest::kElementwise, .granularity = ScaleGranularity::kTensor},
      .parameters = AdalossParameters(),
      .make = MakeAdaloss,
      .checkpoint = CheckpointContent::kNothing};
}

}  // namespace dlsim::sim
