// SPDX-License-Identifier: Apache-2.0
// How the conversions of whole arrays write their results.
#pragma once

#include <span>

#include "dlsim/convert.h"

namespace dlsim {

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
