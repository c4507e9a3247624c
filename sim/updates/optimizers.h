// SPDX-License-Identifier: Apache-2.0
// The optimizers, each as torch.optim computes one element of a parameter with foreach=False or
// True, capturable=False, on a CPU. A call updates the element and returns by how much the weight
// should change before anything of that is rounded.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "sim/updates/arithmetic.h"
#include "sim/updates/optimizer_settings.h"

namespace dlsim::sim {

// What is kept of an element.
struct UpdatedElement {
  float weight = 0;
  float first = 0;       // momentum_buffer of SGD, exp_avg
  float second = 0;      // exp_avg_sq, variance of Adafactor
  float max_second = 0;  // of AMSGrad
};

// Weight decay as a factor of weights.
template <class Keep>
class DecoupledDecay {
 public:
  explicit DecoupledDecay(const OptimizerSettings& s)
      : decays_(s.weight_decay != 0), kept_(static_cast<float>(1 - s.lr * s.weight_decay)) {}

  double operator()(const TensorOps<Keep>& ops, float& weight) const {
    if (!decays_) return 0;
    const double change = double{weight} * (double{kept_} - 1);
    weight = ops.Mul(weight, kept_);
    return change;
  }

 private:
  bool decays_;
  float kept_;
};

// `update` counts from 1.
template <class Keep>
class AdamUpdate {
 public:
  AdamUpdate(const Keep& keep, const OptimizerSettings& s, uint64_t update)
      : ops_(keep), settings_(s), decoupled_(s) {
    const double t = static_cast<double>(update);
    decay_ = ops_.Addend(s.weight_decay);
    grad_share_ = static_cast<float>(1 - s.beta1);
    beta2_ = static_cast<float>(s.beta2);
    square_share_ = static_cast<float>(1 - s.beta2);
    step_ = static_cast<float>(-(s.lr / (1 - std::pow(s.beta1, t))));
    correction_ = static_cast<float>(std::pow(1 - std::pow(s.beta2, t), 0.5));
    eps_ = ops_.Addend(s.eps);
  }

  double operator()(float gradient, UpdatedElement& e) const {
    float g = settings_.maximize ? -gradient : gradient;
    double change = 0;
    if (settings_.decoupled) {
      change = decoupled_(ops_, e.weight);
    } else if (settings_.weight_decay != 0) {
      g = ops_.AddScaled(g, e.weight, decay_);
    }
    e.first = ops_.Lerp(e.first, g, grad_share_);
    e.second = ops_.AddCMul(ops_.Mul(e.second, beta2_), g, g, square_share_);
    if (settings_.amsgrad) e.max_second = Maximum(e.max_second, e.second);
    const float root = ops_.Sqrt(settings_.amsgrad ? e.max_second : e.second);
    const float step = (step_ * e.first) / ops_.Add(ops_.Div(root, correction_), eps_);
    e.weight = ops_.Stored(e.weight + step);
    return change + double{step};
  }

 private:
  TensorOps<Keep> ops_;
  OptimizerSettings settings_;
  DecoupledDecay<Keep> decoupled_;
  float decay_, grad_share_, beta2_, square_share_, step_, correction_, eps_;
};

template <class Keep>
class SgdUpdate {
 public:
  // `has_momentum`: the buffer holds what earlier updates left.
  SgdUpdate(const Keep& keep, const OptimizerSettings& s, bool has_momentum)
      : ops_(keep), settings_(s), has_momentum_(has_momentum) {
    decay_ = ops_.Addend(s.weight_decay);
    momentum_ = static_cast<float>(s.momentum);
    momentum_addend_ = ops_.Addend(s.momentum);
    undamped_ = ops_.Addend(1 - s.dampening);
    step_ = ops_.Addend(-s.lr);
  }

  double operator()(float gradient, UpdatedElement& e) const {
    float g = settings_.maximize ? -gradient : gradient;
    if (settings_.weight_decay != 0) g = ops_.AddScaled(g, e.weight, decay_);
    if (settings_.momentum != 0) {
      e.first = has_momentum_ ? ops_.AddScaled(ops_.Mul(e.first, momentum_), g, undamped_) : g;
      g = settings_.nesterov ? ops_.AddScaled(g, e.first, momentum_addend_) : e.first;
    }
    e.weight = ops_.AddScaled(e.weight, g, step_);
    return double{step_} * double{g};
  }

 private:
  TensorOps<Keep> ops_;
  OptimizerSettings settings_;
  bool has_momentum_;
  float decay_, momentum_, momentum_addend_, undamped_, step_;
};

// As in lion-pytorch, and in the paper (Chen et al., 2023).
template <class Keep>
class LionUpdate {
 public:
  LionUpdate(const Keep& keep, const OptimizerSettings& s)
      : ops_(keep), maximize_(s.maximize), decay_(s) {
    beta1_ = static_cast<float>(s.beta1);
    grad_share1_ = ops_.Addend(1 - s.beta1);
    beta2_ = static_cast<float>(s.beta2);
    grad_share2_ = ops_.Addend(1 - s.beta2);
    step_ = ops_.Addend(-s.lr);
  }

  double operator()(float gradient, UpdatedElement& e) const {
    const float g = maximize_ ? -gradient : gradient;
    const double change = decay_(ops_, e.weight);
    const float mean = ops_.AddScaled(ops_.Mul(e.first, beta1_), g, grad_share1_);
    const float sign = static_cast<float>((mean > 0) - (mean < 0));  // of NaN it is 0
    e.weight = ops_.AddScaled(e.weight, sign, step_);
    e.first = ops_.AddScaled(ops_.Mul(e.first, beta2_), g, grad_share2_);
    return change + double{step_} * double{sign};
  }

 private:
  TensorOps<Keep> ops_;
  bool maximize_;
  DecoupledDecay<Keep> decay_;
  float beta1_, grad_share1_, beta2_, grad_share2_, step_;
};

// torch.optim.Adafactor for a vector: the second moment of each element, no first one. What it
// takes of a whole tensor, the sizes of weights and of the update, is taken of the elements at
// hand.
template <class Keep>
class AdafactorUpdate {
 public:
  AdafactorUpdate(const Keep& keep, const OptimizerSettings& s, uint64_t update, double epsilon)
      : ops_(keep), settings_(s), decay_(s) {
    const double t = static_cast<double>(update), eps1 = s.eps1.value_or(epsilon);
    share_ = static_cast<float>(std::pow(t, s.beta2_decay));
    floor_ = ops_.Addend(eps1 * eps1);
    rate_ = std::fmin(s.lr, 1 / std::sqrt(t));
  }

  // Looks at all elements before the first of them is updated.
  void Prepare(std::span<const float> gradients, std::span<const UpdatedElement> elements) {
    double weights = 0, updates = 0;
    for (size_t i = 0; i < elements.size(); ++i) {
      weights += double{elements[i].weight} * double{elements[i].weight};
      const float update = UpdateOf(gradients[i], SecondOf(gradients[i], elements[i].second));
      updates += double{update} * double{update};
    }
    const double root = std::sqrt(static_cast<double>(elements.size()));
    const double alpha = std::fmax(settings_.eps2, NormOf(weights) / root) * rate_;
    const double clip = std::fmax(1, NormOf(updates) / (root * settings_.largest_rms));
    step_ = ops_.Addend(-alpha / clip);
  }

  double operator()(float gradient, UpdatedElement& e) const {
    const double change = decay_(ops_, e.weight);
    e.second = SecondOf(gradient, e.second);
    const float update = UpdateOf(gradient, e.second);
    e.weight = ops_.AddScaled(e.weight, update, step_);
    return change + double{step_} * double{update};
  }

 private:
  // A norm is an element of the tensor's format.
  double NormOf(double squares) const { return ops_.Addend(std::sqrt(squares)); }
  float SecondOf(float gradient, float second) const {
    return ops_.Lerp(second, ops_.Mul(gradient, gradient), share_);
  }
  float UpdateOf(float gradient, float second) const {
    const float floored = second < floor_ ? floor_ : second;
    return ops_.Mul(ops_.Rsqrt(floored), settings_.maximize ? -gradient : gradient);
  }

  TensorOps<Keep> ops_;
  OptimizerSettings settings_;
  DecoupledDecay<Keep> decay_;
  float share_ = 0, floor_ = 0, step_ = 0;
  double rate_ = 0;
};

}  // namespace dlsim::sim
