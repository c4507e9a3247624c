// SPDX-License-Identifier: Apache-2.0
// The optimizers, each as torch.optim computes the elements of a parameter with capturable=False:
// on a CPU with foreach=False or True, on CUDA with foreach=True. A call updates a vector of
// elements, from place i on. Re-included per SIMD target.
#if defined(DLSIM_OPTIMIZERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_OPTIMIZERS_INL_H_
#undef DLSIM_OPTIMIZERS_INL_H_
#else
#define DLSIM_OPTIMIZERS_INL_H_
#endif

#include <cstddef>

#include "sim/updates/arithmetic-inl.h"
#include "sim/updates/update_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim::sim {
namespace HWY_NAMESPACE {

// What optimizers have in common. A is the type of their factors.
template <class Ops, class A>
class Optimizer {
 public:
  using F = typename Ops::F;
  static constexpr typename Ops::Floats kFloats{};

  Optimizer(const Ops& ops, const A& factors) : ops_(ops), f_(factors) {}

 protected:
  HWY_INLINE F GradientAt(const UpdateArrays& a, size_t i) const {
    const F gradient = kFloats.Load(a.gradients + i);
    return f_.maximize ? kFloats.Neg(gradient) : gradient;
  }

  // The weights, or what is left of them.
  HWY_INLINE F WeightAt(const UpdateArrays& a, size_t i) const {
    const F weight = kFloats.Load(a.before + i);
    if constexpr (requires { f_.weights; }) {
      if (f_.weights.decays) return ops_.Mul(weight, kFloats.Set(f_.weights.kept));
    }
    return weight;
  }

  Ops ops_;
  A f_;
};

template <class Ops>
class AdamUpdate : Optimizer<Ops, AdamFactors> {
  using Base = Optimizer<Ops, AdamFactors>;
  using Base::f_, Base::ops_, Base::kFloats;
  using F = typename Ops::F;

 public:
  using Base::Base;

  HWY_INLINE void operator()(const UpdateArrays& a, size_t i) const {
    F g = Base::GradientAt(a, i);
    const F weight = DecayedAt(a, i);
    if (f_.decays_gradients) g = ops_.AddScaled(g, weight, f_.decay);
    const F first = First(kFloats.Load(a.first + i), g);
    kFloats.Store(first, a.first + i);
    const F second = Second(kFloats.Load(a.second + i), g);
    kFloats.Store(second, a.second + i);
    F largest = second;
    if (f_.amsgrad) {
      largest = ops_.Maximum(kFloats.Load(a.max_second + i), second);
      kFloats.Store(largest, a.max_second + i);
    }
    const F root = ops_.Div(ops_.Sqrt(largest), kFloats.Set(f_.correction));
    Step(a, i, weight, first, ops_.Add(root, kFloats.Set(f_.eps)));
  }

 private:
  HWY_INLINE F DecayedAt(const UpdateArrays& a, size_t i) const {
    if (f_.kernel != AdamKernel::kFusedCuda) return Base::WeightAt(a, i);
    const F weight = kFloats.Load(a.before + i);
    return f_.weights.decays ? ops_.AddScaled(weight, weight, f_.weights.kept) : weight;
  }

  HWY_INLINE F First(F first, F g) const {
    if (f_.kernel != AdamKernel::kFusedCuda) return ops_.Lerp(first, g, f_.grad_share);
    return ops_.AddScaled(kFloats.Mul(kFloats.Set(f_.grad_share), g), first, f_.beta1);
  }

  HWY_INLINE F Second(F second, F g) const {
    if (f_.kernel == AdamKernel::kFusedCuda) {
      const F square = kFloats.Mul(kFloats.Set(f_.square_share), kFloats.Mul(g, g));
      return ops_.AddScaled(square, second, f_.beta2);
    }
    const F kept = ops_.Mul(second, kFloats.Set(f_.beta2));
    return f_.kernel == AdamKernel::kCpu ? ops_.AddCMul(kept, g, g, f_.square_share)
                                         : ops_.AddCMulOnCuda(kept, g, g, f_.square_share);
  }

  HWY_INLINE void Step(const UpdateArrays& a, size_t i, F weight, F first, F root) const {
    if (f_.kernel == AdamKernel::kCuda) {
      const F quotient = kFloats.Div(first, root);
      kFloats.Store(quotient, a.steps + i);
      kFloats.Store(ops_.AddScaled(weight, quotient, f_.step), a.after + i);
      return;
    }
    const F step = kFloats.Div(kFloats.Mul(kFloats.Set(f_.step), first), root);
    kFloats.Store(step, a.steps + i);
    kFloats.Store(ops_.Stored(kFloats.Add(weight, step)), a.after + i);
  }
};

template <class Ops>
class SgdUpdate : Optimizer<Ops, SgdFactors> {
  using Base = Optimizer<Ops, SgdFactors>;
  using Base::f_, Base::ops_, Base::kFloats;
  using F = typename Ops::F;

 public:
  using Base::Base;

  HWY_INLINE void operator()(const UpdateArrays& a, size_t i) const {
    F g = Base::GradientAt(a, i);
    const F weight = Base::WeightAt(a, i);
    if (f_.decays_gradients) g = ops_.AddScaled(g, weight, f_.decay);
    if (f_.has_momentum) {
      F first = g;
      if (f_.has_first) {
        const F kept = ops_.Mul(kFloats.Load(a.first + i), kFloats.Set(f_.momentum));
        first = ops_.AddScaled(kept, g, f_.undamped);
      }
      kFloats.Store(first, a.first + i);
      g = f_.nesterov ? ops_.AddScaled(g, first, f_.momentum_addend) : first;
    }
    kFloats.Store(g, a.steps + i);
    kFloats.Store(ops_.AddScaled(weight, g, f_.step), a.after + i);
  }
};

// As in lion-pytorch, and in the paper (Chen et al., 2023).
template <class Ops>
class LionUpdate : Optimizer<Ops, LionFactors> {
  using Base = Optimizer<Ops, LionFactors>;
  using Base::f_, Base::ops_, Base::kFloats;
  using F = typename Ops::F;

 public:
  using Base::Base;

  HWY_INLINE void operator()(const UpdateArrays& a, size_t i) const {
    const F g = Base::GradientAt(a, i);
    const F weight = Base::WeightAt(a, i);
    const F first = kFloats.Load(a.first + i);
    const F mean = ops_.AddScaled(ops_.Mul(first, kFloats.Set(f_.beta1)), g, f_.grad_share1);
    const F zero = kFloats.Set(0);
    const F negative = kFloats.Select(kFloats.Lt(mean, zero), kFloats.Set(-1), zero);
    const F sign = kFloats.Select(kFloats.Lt(zero, mean), kFloats.Set(1), negative);  // NaN: 0
    kFloats.Store(sign, a.steps + i);
    kFloats.Store(ops_.AddScaled(weight, sign, f_.step), a.after + i);
    const F kept = ops_.Mul(first, kFloats.Set(f_.beta2));
    kFloats.Store(ops_.AddScaled(kept, g, f_.grad_share2), a.first + i);
  }
};

// torch.optim.Adafactor for a vector: the second moment of each element, no first one. What it
// takes of a whole tensor, the sizes of weights and of the update, is taken of the elements at
// hand.
template <class Ops>
class AdafactorUpdate : Optimizer<Ops, AdafactorFactors> {
  using Base = Optimizer<Ops, AdafactorFactors>;
  using Base::f_, Base::ops_, Base::kFloats;
  using F = typename Ops::F;

 public:
  using Base::Base;

  // What would be added to weights, but for its size.
  HWY_INLINE F Find(const UpdateArrays& a, size_t i, F& second) const {
    const F g = kFloats.Load(a.gradients + i);
    second = ops_.Lerp(kFloats.Load(a.second + i), ops_.Mul(g, g), f_.share);
    const F floor = kFloats.Set(f_.floor);
    const F floored = kFloats.Select(kFloats.Lt(second, floor), floor, second);
    const F update = ops_.Mul(ops_.Rsqrt(floored), Base::GradientAt(a, i));
    kFloats.Store(update, a.steps + i);
    return update;
  }

  HWY_INLINE void operator()(const UpdateArrays& a, size_t i) const {
    const F weight = Base::WeightAt(a, i);
    F second = weight;
    const F update = Find(a, i, second);
    kFloats.Store(second, a.second + i);
    kFloats.Store(f_.scales_first ? ops_.Add(weight, ops_.Mul(update, kFloats.Set(f_.step)))
                                  : ops_.AddScaled(weight, update, f_.step),
                  a.after + i);
  }
};

// The first half of it.
template <class Ops>
class AdafactorSearch : AdafactorUpdate<Ops> {
  using Base = AdafactorUpdate<Ops>;

 public:
  using Base::Base;

  HWY_INLINE void operator()(const UpdateArrays& a, size_t i) const {
    typename Ops::F second = Ops::kFloats.Set(0);
    Base::Find(a, i, second);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace dlsim::sim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
