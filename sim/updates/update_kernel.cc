// SPDX-License-Identifier: Apache-2.0
#include "sim/updates/update_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/updates/update_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "sim/updates/update_loops-inl.h"
#include "src/codec/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim::sim {
namespace HWY_NAMESPACE {

void UpdateOnTarget(const UpdateFactors& factors, const StoredFormat& format,
                    const UpdateArrays& arrays) {
  UpdateWith<VectorFloats>(factors, format, arrays);
}

void FindOnTarget(const AdafactorFactors& factors, const StoredFormat& format,
                  const UpdateArrays& arrays) {
  FindWith<VectorFloats>(factors, format, arrays);
}

UpdateCounts CountOnTarget(const WantedChange& wanted, const MovedWeights& moved) {
  return CountWith<VectorDoubles>(wanted, moved);
}

#if HWY_ONCE

void UpdateOneByOne(const UpdateFactors& factors, const StoredFormat& format,
                    const UpdateArrays& arrays) {
  UpdateWith<ScalarFloats>(factors, format, arrays);
}

UpdateCounts CountOneByOne(const WantedChange& wanted, const MovedWeights& moved) {
  return CountWith<ScalarDoubles>(wanted, moved);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace dlsim::sim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim::sim {
namespace {

DLSIM_EXPORT(UpdateOnTarget);
DLSIM_EXPORT(FindOnTarget);
DLSIM_EXPORT(CountOnTarget);

}  // namespace

void UpdateElements(const UpdateFactors& factors, const StoredFormat& format,
                    const UpdateArrays& arrays) {
  DLSIM_DISPATCH(UpdateOnTarget)(factors, format, arrays);
}

void UpdateElementsReference(const UpdateFactors& factors, const StoredFormat& format,
                             const UpdateArrays& arrays) {
  HWY_STATIC_DISPATCH(UpdateOneByOne)(factors, format, arrays);
}

void FindAdafactorUpdates(const AdafactorFactors& factors, const StoredFormat& format,
                          const UpdateArrays& arrays) {
  DLSIM_DISPATCH(FindOnTarget)(factors, format, arrays);
}

UpdateCounts CountUpdates(const WantedChange& wanted, const MovedWeights& moved) {
  return DLSIM_DISPATCH(CountOnTarget)(wanted, moved);
}

UpdateCounts CountUpdatesReference(const WantedChange& wanted, const MovedWeights& moved) {
  return HWY_STATIC_DISPATCH(CountOneByOne)(wanted, moved);
}

}  // namespace dlsim::sim
#endif  // HWY_ONCE
