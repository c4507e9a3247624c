// SPDX-License-Identifier: Apache-2.0
// Calls kernels of the SIMD target in use: DLSIM_EXPORT and DLSIM_DISPATCH stand for HWY_EXPORT and
// HWY_DYNAMIC_DISPATCH. Those ask Highway's shared library, which when it is loaded measures a
// clock for four milliseconds, half of the time that a short command takes.
#pragma once

#include "hwy/highway.h"

namespace dlsim {

// At first the best target of the machine; UseSimdTarget sets it.
const hwy::ChosenTarget& KernelTarget();

}  // namespace dlsim

// Makes a table of a function's variants; once in a file, not for each target.
#define DLSIM_EXPORT(FUNCTION)                                               \
  constexpr decltype(&HWY_STATIC_DISPATCH(FUNCTION)) FUNCTION##Kernels[] = { \
      nullptr, HWY_CHOOSE_TARGET_LIST(FUNCTION), HWY_CHOOSE_FALLBACK(FUNCTION)}

#define DLSIM_DISPATCH(FUNCTION) (*FUNCTION##Kernels[::dlsim::KernelTarget().GetIndex()])
