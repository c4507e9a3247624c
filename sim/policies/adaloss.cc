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
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

float AsFp16(float value) {
  static const CodecSpec fp16 = MakeCodecSpec({.format = ParseFormat("fp16").format});
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>(Decode(fp16, Encode(fp16, Rounding::kNearestEven, bits).code));
}

struct AdaLoss {
  struct Config {
    float u_min = 0;
    float u_max = 0;
    double n_uf = 0;
    double n_uf_threshold = 0;  // standard deviations within which n_uf of a normal gradient lies
    bool power_of_two = true;
    bool use_bound = true;
    float scale_upper_bound = 0;
    float accum_upper_bound = 0;
  };
  struct State {
    float scale = 1;
  };
  static State Start(const Config&) { return {}; }
  // Types are NumPy's: the threshold is float64 and makes the quotient float64.
  static void Prepare(const Config& config, State& state, const GradientSpread& spread) {
    const float sigma = static_cast<float>(spread.standard_deviation);
    float scale = 1;
    if (sigma != 0) {
      const double wanted = double{config.u_min} / (config.n_uf_threshold * double{sigma});
      const double upper = double{config.u_max / spread.absmax};
      scale = static_cast<float>(std::min(std::max(wanted, 1.0), upper));
    }
    if (config.use_bound) {
      scale = std::min({scale, config.accum_upper_bound, config.scale_upper_bound});
    }
    if (config.power_of_two) {
      // The float32 logarithm of the original may round up to the next power of two.
      scale = std::exp2(std::floor(std::log2(scale)));
    }
    state.scale = AsFp16(scale);
  }
  static Transition<State> Next(const Config&, const State& state, const ScalerInput&) {
    return {.next = state};
  }
  static constexpr std::tuple kFields = {StateField{"loss_scale", &State::scale}};
};

void FinishAdaLoss(Setup<AdaLoss::Config>& setup) {
  AdaLoss::Config& config = setup.config;
  const Settings& settings = setup.settings;
  if (!(config.n_uf > 0 && config.n_uf < 1)) {
    settings.Refuse("n_uf_threshold", "not a share", "a number above 0, below 1");
  }
  for (const char* name : {"u_min", "u_max", "scale_upper_bound", "accum_upper_bound"}) {
    if (static_cast<float>(settings.Number(name)) > 0) continue;
    settings.Refuse(name, "not above 0", "a positive float32 number");
  }
  config.n_uf_threshold = boost::math::erf_inv(config.n_uf) * std::numbers::sqrt2;
  config.scale_upper_bound = AsFp16(config.scale_upper_bound);
  config.accum_upper_bound = AsFp16(config.accum_upper_bound);
  setup.NoteIf(!setup.format.empty() && setup.format != "fp16",
               "u_min and u_max default to the limits of fp16, and the factor is an fp16");
  setup.Note(config.use_bound
                 ? "use_bound limits every factor to scale_upper_bound"
                 : "without use_bound a small gradient's factor can be too large for fp16: "
                   "infinite");
}

}  // namespace

PolicyInfo AdaLossPolicy() {
  using Config = AdaLoss::Config;
  return PolicyOf<AdaLoss>(
      {.name = "adaloss",
       .aliases = {"ada-loss", "ada_loss"},
       .summary = "adaptive loss scaling: each gradient's factor from its own spread",
       .rules = {.finite_test = FiniteTest::kElementwise, .granularity = ScaleGranularity::kTensor},
       .checkpoint = Kept::kNothing},
      {Row(&Config::u_min, "u_min", {}, "6e-8", "magnitudes below this underflow"),
       Row(&Config::u_max, "u_max", {"max"}, "65504", "magnitudes above this overflow"),
       Row(&Config::n_uf, "n_uf_threshold", {"n_uf"}, "1e-3",
           "share of a normal gradient that may underflow"),
       Row(&Config::power_of_two, "power_of_two", {}, "true",
           "round the factor down to a power of two"),
       Row(&Config::use_bound, "use_bound", {}, "true", "apply the two bounds below"),
       Row(&Config::scale_upper_bound, "scale_upper_bound", {}, "16",
           "largest factor of one gradient"),
       Row(&Config::accum_upper_bound, "accum_upper_bound", {}, "1024",
           "largest product of factors; here of one")},
      FinishAdaLoss);
}

}  // namespace dlsim::sim
