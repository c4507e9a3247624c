// SPDX-License-Identifier: Apache-2.0
// How kernels fit the machine: the SIMD target in use, by which they are called, and the last
// cache, which large outputs go past. DLSIM_EXPORT and DLSIM_DISPATCH replace Highway's HWY_EXPORT
// and HWY_DYNAMIC_DISPATCH, which need its shared library. Loading that library takes four
// milliseconds, half the time of a short command, because it measures a clock.
#pragma once

#include <cstddef>
#include <span>

#include "dlsim/convert.h"
#include "hwy/highway.h"

namespace dlsim {

// Returns the target in use: the best one of the machine, unless UseSimdTarget has chosen another.
const hwy::ChosenTarget& KernelTarget();

// Returns the bytes of the last-level cache; 32 MiB where the system does not tell. Read once.
size_t LastLevelCacheBytes();

// How the conversions of whole arrays write their results.
enum class Stores {
  kCached,
  kNonTemporal,  // past the caches: the old contents of a large output need not be read first
};

// As in dlsim/convert.h, which chooses the stores by the size of the output. Formats without tuned
// kernels ignore the choice.
void EncodeArrayWith(Stores stores, const ArrayConversion& how, std::span<const float> values,
                     std::span<uint16_t> codes);
void DecodeArrayWith(Stores stores, const Format& format, std::span<const uint16_t> codes,
                     std::span<float> values);

}  // namespace dlsim

// Defines the table of a function's variants. For use inside #if HWY_ONCE.
#define DLSIM_EXPORT(FUNCTION)                                               \
  constexpr decltype(&HWY_STATIC_DISPATCH(FUNCTION)) FUNCTION##Kernels[] = { \
      nullptr, HWY_CHOOSE_TARGET_LIST(FUNCTION), HWY_CHOOSE_FALLBACK(FUNCTION)}

#define DLSIM_DISPATCH(FUNCTION) (*FUNCTION##Kernels[::dlsim::KernelTarget().GetIndex()])
