// SPDX-License-Identifier: Apache-2.0
#include "sim/updates/update_factors.h"

#include <cmath>

namespace dlsim::sim {
namespace {

// Factors and divisors are float32 numbers. So are addends and factors of add on a GPU, while a CPU
// rounds them to the tensor's format first.
float Factor(double number) { return static_cast<float>(number); }

class Addends {
 public:
  Addends(const OptimizerSettings& s, const StoredFormat& format)
      : format_(s.device == UpdateDevice::kCpu ? format : StoredFormat()) {}
  float operator()(double number) const { return StoredIn(format_, static_cast<float>(number)); }

 private:
  StoredFormat format_;
};

DecayFactor DecayOf(const OptimizerSettings& s) {
  return {Factor(1 - s.lr * s.weight_decay), s.weight_decay != 0};
}

// PyTorch's fused kernel for CUDA is told float32 numbers and computes in them; 1 - beta is exact.
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

AdamFactors AdamOf(const OptimizerSettings& s, const Addends& addend, uint64_t update, bool fused) {
  const double t = static_cast<double>(update);
  AdamFactors f;
  if (s.device == UpdateDevice::kCuda) f.kernel = AdamKernel::kCuda;
  if (s.decoupled) f.weights = DecayOf(s);
  f.decays_gradients = !s.decoupled && s.weight_decay != 0;
  f.decay = addend(s.weight_decay);
  f.maximize = s.maximize;
  f.amsgrad = s.amsgrad;
  f.grad_share = Factor(1 - s.beta1);
  f.beta2 = Factor(s.beta2);
  f.square_share = Factor(1 - s.beta2);
  const auto correction = [&](double beta) { return s.corrects_bias ? 1 - std::pow(beta, t) : 1; };
  f.step = Factor(-(s.lr / correction(s.beta1)));
  f.correction = Factor(std::pow(correction(s.beta2), 0.5));
  f.eps = addend(s.eps);
  if (fused && f.kernel == AdamKernel::kCuda) SetFusedOnCuda(s, t, f);
  return f;
}

SgdFactors SgdOf(const OptimizerSettings& s, const Addends& addend, bool has_first) {
  SgdFactors f;
  f.decays_gradients = s.weight_decay != 0;
  f.maximize = s.maximize;
  f.nesterov = s.nesterov;
  f.has_momentum = s.momentum != 0;
  f.has_first = has_first;
  f.decay = addend(s.weight_decay);
  f.momentum = Factor(s.momentum);
  f.momentum_addend = addend(s.momentum);
  f.undamped = addend(1 - s.dampening);
  f.step = addend(-s.lr);
  return f;
}

LionFactors LionOf(const OptimizerSettings& s, const Addends& addend) {
  return {DecayOf(s),      s.maximize,          Factor(s.beta1), addend(1 - s.beta1),
          Factor(s.beta2), addend(1 - s.beta2), addend(-s.lr)};
}

AdafactorFactors AdafactorOf(const OptimizerSettings& s, const Addends& addend, uint64_t update,
                             double epsilon) {
  const double eps1 = s.eps1.value_or(epsilon);
  AdafactorFactors f;
  f.weights = DecayOf(s);
  f.maximize = s.maximize;
  f.share = Factor(std::pow(static_cast<double>(update), s.beta2_decay));
  f.floor = addend(eps1 * eps1);
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
  const Addends addend(s, place.format);
  switch (s.kind) {
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return AdamOf(s, addend, place.update, place.fused);
    case OptimizerKind::kSgd:
      return SgdOf(s, addend, place.has_first);
    case OptimizerKind::kLion:
      return LionOf(s, addend);
    case OptimizerKind::kAdafactor:
      break;
  }
  return AdafactorOf(s, addend, place.update, place.epsilon);
}

float AdafactorStep(const OptimizerSettings& s, const StoredFormat& format, uint64_t update,
                    std::span<const float> weights, std::span<const float> updates) {
  const Addends addend(s, format);
  // A norm is an element of the tensor's format.
  const auto norm_of = [&](std::span<const float> values) {
    return double{StoredIn(format, Factor(std::sqrt(SumOfSquares(values))))};
  };
  const double rate = std::fmin(s.lr, 1 / std::sqrt(static_cast<double>(update)));
  const double root = std::sqrt(static_cast<double>(weights.size()));
  const double alpha = std::fmax(s.eps2, norm_of(weights) / root) * rate;
  const double clip = std::fmax(1, norm_of(updates) / (root * s.largest_rms));
  return addend(-alpha / clip);
}

WantedChange WantedBy(const UpdateFactors& factors) {
  return std::visit([](const auto& f) { return WantedOf(f); }, factors);
}

}  // namespace dlsim::sim
