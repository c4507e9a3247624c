// SPDX-License-Identifier: Apache-2.0
#include "sim/updates/update_factors.h"

#include <cmath>

namespace dlsim::sim {
namespace {

float Factor(double number) { return static_cast<float>(number); }

// Factors and divisors are float32 numbers. So are addends and factors of add on a GPU, while a CPU
// rounds them to the tensor's format first, and with foreach=True also what multiplies a tensor.
class Numbers {
 public:
  Numbers(const OptimizerSettings& s, const StoredFormat& format)
      : addend_(s.device == UpdateDevice::kCpu ? format : StoredFormat()),
        multiplier_(s.is_foreach ? addend_ : StoredFormat()),
        share_(s.tensor_betas ? format : StoredFormat()),
        is_share_rounded_(s.tensor_betas) {}
  float Addend(double number) const { return StoredIn(addend_, Factor(number)); }
  float Multiplier(double number) const { return StoredIn(multiplier_, Factor(number)); }

  // 1 - beta of the first moment; of a beta that is a tensor, in the tensor's format.
  float Share(double beta) const {
    if (!is_share_rounded_) return Factor(1 - beta);
    return StoredIn(share_, 1 - StoredIn(share_, Factor(beta)));
  }

 private:
  StoredFormat addend_, multiplier_, share_;
  bool is_share_rounded_;
};

DecayFactor DecayOf(const OptimizerSettings& s, const Numbers& numbers) {
  return {numbers.Multiplier(1 - s.lr * s.weight_decay), s.weight_decay != 0};
}

// PyTorch's fused kernel for CUDA receives float32 numbers and computes in them; 1 - beta is exact.
void SetFusedOnCuda(const OptimizerSettings& s, double t, AdamFactors& f) {
  f.kernel = AdamKernel::kFusedCuda;
  f.weights.kept = -(Factor(s.lr) * Factor(s.weight_decay));
  f.beta1 = Factor(s.beta1);
  f.grad_share = 1 - f.beta1;
  f.square_share = 1 - f.beta2;
  const auto correction = [&](float beta) {
    return s.corrects_bias ? 1 - Factor(std::pow(double{beta}, t)) : 1;
  };
  f.step = -(Factor(s.lr) / correction(f.beta1));
  f.correction = std::sqrt(correction(f.beta2));
}

AdamFactors AdamOf(const OptimizerSettings& s, const Numbers& numbers, uint64_t update,
                   bool fused) {
  const double t = static_cast<double>(update);
  AdamFactors f;
  if (s.device == UpdateDevice::kCuda) f.kernel = AdamKernel::kCuda;
  if (s.decoupled) f.weights = DecayOf(s, numbers);
  f.decays_gradients = !s.decoupled && s.weight_decay != 0;
  f.decay = numbers.Addend(s.weight_decay);
  f.maximize = s.maximize;
  f.amsgrad = s.amsgrad;
  f.grad_share = numbers.Share(s.beta1);
  f.beta2 = numbers.Multiplier(s.beta2);
  f.square_share = Factor(1 - s.beta2);
  const auto correction = [&](double beta) { return s.corrects_bias ? 1 - std::pow(beta, t) : 1; };
  f.step = Factor(-(s.lr / correction(s.beta1)));
  f.correction = Factor(std::pow(correction(s.beta2), 0.5));
  f.eps = numbers.Addend(s.eps);
  if (fused && f.kernel == AdamKernel::kCuda) SetFusedOnCuda(s, t, f);
  return f;
}

SgdFactors SgdOf(const OptimizerSettings& s, const Numbers& numbers, bool has_first) {
  SgdFactors f;
  f.decays_gradients = s.weight_decay != 0;
  f.maximize = s.maximize;
  f.nesterov = s.nesterov;
  f.has_momentum = s.momentum != 0;
  f.has_first = has_first;
  f.decay = numbers.Addend(s.weight_decay);
  f.momentum = numbers.Multiplier(s.momentum);
  f.momentum_addend = numbers.Addend(s.momentum);
  f.undamped = numbers.Addend(1 - s.dampening);
  f.step = numbers.Addend(-s.lr);
  return f;
}

LionFactors LionOf(const OptimizerSettings& s, const Numbers& numbers) {
  return {DecayOf(s, numbers),         s.maximize,      Factor(s.beta1),
          numbers.Addend(1 - s.beta1), Factor(s.beta2), numbers.Addend(1 - s.beta2),
          numbers.Addend(-s.lr)};
}

AdafactorFactors AdafactorOf(const OptimizerSettings& s, const Numbers& numbers, uint64_t update,
                             double epsilon) {
  const double eps1 = s.eps1.value_or(epsilon);
  AdafactorFactors f;
  f.weights = DecayOf(s, numbers);
  f.maximize = s.maximize;
  f.share = Factor(std::pow(static_cast<double>(update), s.beta2_decay));
  f.floor = numbers.Addend(eps1 * eps1);
  f.scales_first = s.is_foreach;
  return f;
}

double SumOfSquares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return sum;
}

WantedChange Wanted(const DecayFactor& weights, double factor) {
  return {weights.decays, double{weights.kept} - 1, factor};
}
WantedChange WantedOf(const AdamFactors& f) {
  if (f.kernel == AdamKernel::kFusedCuda) return {f.weights.decays, double{f.weights.kept}, 1};
  return Wanted(f.weights, f.kernel == AdamKernel::kCpu ? 1 : f.step);
}
WantedChange WantedOf(const SgdFactors& f) { return {false, 0, f.step}; }
WantedChange WantedOf(const LionFactors& f) { return Wanted(f.weights, f.step); }
WantedChange WantedOf(const AdafactorFactors& f) { return Wanted(f.weights, f.step); }

}  // namespace

UpdateFactors MakeUpdateFactors(const OptimizerSettings& s, const UpdatePlace& place) {
  const Numbers numbers(s, place.format);
  switch (s.kind) {
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return AdamOf(s, numbers, place.update, place.fused);
    case OptimizerKind::kSgd:
      return SgdOf(s, numbers, place.has_first);
    case OptimizerKind::kLion:
      return LionOf(s, numbers);
    case OptimizerKind::kAdafactor:
      break;
  }
  return AdafactorOf(s, numbers, place.update, place.epsilon);
}

float AdafactorStep(const OptimizerSettings& s, const StoredFormat& format, uint64_t update,
                    std::span<const float> weights, std::span<const float> updates) {
  const Numbers numbers(s, format);
  // A norm is an element of the tensor's format.
  const auto norm_of = [&](std::span<const float> values) {
    return double{StoredIn(format, Factor(std::sqrt(SumOfSquares(values))))};
  };
  const double rate = std::fmin(s.lr, 1 / std::sqrt(static_cast<double>(update)));
  const double root = std::sqrt(static_cast<double>(weights.size()));
  const double alpha = std::fmax(s.eps2, norm_of(weights) / root) * rate;
  const double clip = std::fmax(1, norm_of(updates) / (root * s.largest_rms));
  const double step = -alpha / clip;
  return s.is_foreach ? numbers.Multiplier(step) : numbers.Addend(step);
}

WantedChange WantedBy(const UpdateFactors& factors) {
  return std::visit([](const auto& f) { return WantedOf(f); }, factors);
}

}  // namespace dlsim::sim
