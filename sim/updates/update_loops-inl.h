// SPDX-License-Identifier: Apache-2.0
// Loops over the elements of a part of a tensor, in whole vectors; re-included per SIMD target.
#if defined(DLSIM_UPDATE_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DLSIM_UPDATE_LOOPS_INL_H_
#undef DLSIM_UPDATE_LOOPS_INL_H_
#else
#define DLSIM_UPDATE_LOOPS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <variant>

#include "sim/updates/optimizers-inl.h"
#include "sim/updates/update_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim::sim {
namespace HWY_NAMESPACE {

// The elements behind the last whole vector, and zeros to fill one.
class LastVector {
 public:
  LastVector(const UpdateArrays& a, size_t begin) : a_(a), begin_(begin) {
    std::copy_n(a.gradients + begin, rest(), gradients_);
    std::copy_n(a.before + begin, rest(), before_);
    CopyIn(a.first, first_);
    CopyIn(a.second, second_);
    CopyIn(a.max_second, max_second_);
  }

  UpdateArrays arrays() {
    return {gradients_, before_, after_, steps_, first_, second_, max_second_, rest()};
  }

  void CopyBack() const {
    CopyOut(after_, a_.after);
    CopyOut(steps_, a_.steps);
    CopyOut(first_, a_.first);
    CopyOut(second_, a_.second);
    CopyOut(max_second_, a_.max_second);
  }

 private:
  size_t rest() const { return a_.count - begin_; }
  void CopyIn(const float* from, float* to) const {
    if (from != nullptr) std::copy_n(from + begin_, rest(), to);
  }
  void CopyOut(const float* from, float* to) const {
    if (to != nullptr) std::copy_n(from, rest(), to + begin_);
  }

  const UpdateArrays& a_;
  size_t begin_;
  float gradients_[kMostLanes] = {}, before_[kMostLanes] = {}, after_[kMostLanes] = {};
  float steps_[kMostLanes] = {}, first_[kMostLanes] = {}, second_[kMostLanes] = {};
  float max_second_[kMostLanes] = {};
};

template <class Floats, class Update>
HWY_NOINLINE void UpdateAll(const Update& optimizer, const UpdateArrays& arrays) {
  const Update update = optimizer;  // in registers, as the next
  const UpdateArrays a = arrays;
  const size_t lanes = Floats::Count();
  size_t i = 0;
  for (; i + lanes <= a.count; i += lanes) update(a, i);
  if (i == a.count) return;
  LastVector last(a, i);
  update(last.arrays(), 0);
  last.CopyBack();
}

template <class Floats, class Keep>
void UpdateKeeping(const Keep& keep, const UpdateFactors& factors, const UpdateArrays& arrays) {
  using Ops = TensorOps<Floats, Keep>;
  const Ops ops(keep);
  if (const auto* adam = std::get_if<AdamFactors>(&factors)) {
    UpdateAll<Floats>(AdamUpdate<Ops>(ops, *adam), arrays);
  } else if (const auto* sgd = std::get_if<SgdFactors>(&factors)) {
    UpdateAll<Floats>(SgdUpdate<Ops>(ops, *sgd), arrays);
  } else if (const auto* lion = std::get_if<LionFactors>(&factors)) {
    UpdateAll<Floats>(LionUpdate<Ops>(ops, *lion), arrays);
  } else {
    UpdateAll<Floats>(AdafactorUpdate<Ops>(ops, std::get<AdafactorFactors>(factors)), arrays);
  }
}

// Calls `body` with what rounds to a format.
template <class Floats, class Body>
void WithKeep(const StoredFormat& format, const Body& body) {
  if (!format) {
    body(KeepFloat32<Floats>());
  } else if (format->format == kBf16) {
    body(KeepBf16<Floats>());
  } else if (format->format == kFp16) {
    body(KeepFp16<Floats>());
  } else {
    body(KeepFormat<Floats>(MakeCodecSpec({format->format})));
  }
}

template <class Floats>
void UpdateWith(const UpdateFactors& factors, const StoredFormat& format,
                const UpdateArrays& arrays) {
  WithKeep<Floats>(
      format, [&](const auto& keep) HWY_ATTR { UpdateKeeping<Floats>(keep, factors, arrays); });
}

template <class Floats>
void FindWith(const AdafactorFactors& factors, const StoredFormat& format,
              const UpdateArrays& arrays) {
  WithKeep<Floats>(format, [&](const auto& keep) HWY_ATTR {
    using Ops = TensorOps<Floats, std::remove_cvref_t<decltype(keep)>>;
    UpdateAll<Floats>(AdafactorSearch<Ops>(Ops(keep), factors), arrays);
  });
}

// Counts a vector of elements.
template <class Doubles>
HWY_INLINE void CountVector(const WantedChange& how, const MovedWeights& w, size_t i,
                            UpdateCounts& counts) {
  constexpr Doubles kDoubles;
  const auto before = kDoubles.Load(w.before + i);
  auto wanted = kDoubles.Mul(kDoubles.Set(how.factor), kDoubles.Load(w.steps + i));
  if (how.decays) wanted = kDoubles.Add(kDoubles.Mul(before, kDoubles.Set(how.decay)), wanted);
  auto moved = kDoubles.Sub(kDoubles.Load(w.after + i), before);
  if (w.owed != nullptr) {
    const auto kept = kDoubles.Sub(kDoubles.Load(w.owing + i), kDoubles.Load(w.owed + i));
    moved = kDoubles.Add(moved, kept);
  }
  const auto zero = kDoubles.Set(0), size = kDoubles.Abs(wanted);
  const auto counted =
      kDoubles.Both(kDoubles.Lt(zero, size), kDoubles.Lt(size, kDoubles.Set(HUGE_VAL)));
  const auto still = kDoubles.Eq(moved, zero);
  const auto near =
      kDoubles.Le(kDoubles.Abs(kDoubles.Sub(moved, wanted)), kDoubles.Mul(kDoubles.Set(0.5), size));
  counts.updates += kDoubles.CountTrue(counted);
  counts.lost += kDoubles.CountTrue(kDoubles.Both(still, counted));
  counts.altered += kDoubles.CountTrue(kDoubles.AndNot(still, kDoubles.AndNot(near, counted)));
}

template <class Doubles>
UpdateCounts CountWith(const WantedChange& wanted, const MovedWeights& moved) {
  const WantedChange how = wanted;
  const MovedWeights w = moved;
  const size_t lanes = Doubles::Count();
  UpdateCounts counts;
  size_t i = 0;
  for (; i + lanes <= w.count; i += lanes) CountVector<Doubles>(how, w, i, counts);
  if constexpr (!std::is_same_v<Doubles, ScalarDoubles>) {
    for (; i < w.count; ++i) CountVector<ScalarDoubles>(how, w, i, counts);
  }
  return counts;
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim::sim
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
