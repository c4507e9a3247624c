// SPDX-License-Identifier: Apache-2.0
// Calls a kernel for the SIMD target in use. DLSIM_EXPORT and DLSIM_DISPATCH replace Highway's
// HWY_EXPORT and HWY_DYNAMIC_DISPATCH, which need its shared library. Loading that library takes
// four milliseconds, half the time of a short command, because it measures a clock.
#pragma once

#include "hwy/highway.h"

namespace dlsim {

// Returns the target in use: the best one of the machine, unless UseSimdTarget has chosen another.
const hwy::ChosenTarget& KernelTarget();

}  // namespace dlsim

// Defines the table of a function's variants. For use inside #if HWY_ONCE.
#define DLSIM_EXPORT(FUNCTION)                                               \
  constexpr decltype(&HWY_STATIC_DISPATCH(FUNCTION)) FUNCTION##Kernels[] = { \
      nullptr, HWY_CHOOSE_TARGET_LIST(FUNCTION), HWY_CHOOSE_FALLBACK(FUNCTION)}

#define DLSIM_DISPATCH(FUNCTION) (*FUNCTION##Kernels[::dlsim::KernelTarget().GetIndex()])
