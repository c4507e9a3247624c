// SPDX-License-Identifier: Apache-2.0
// A sweep over float32 inputs by the scalar reference on all cores of the host: what a compiler for
// the device has no part in.
#pragma once

#include <array>
#include <cstdint>

#include "dlsim/convert.h"

namespace dlsim::gpu_check {

// The sum of MixCode over the first `count` elements of a sweep; see input_order.h.
uint64_t HashOfSweep(const ArrayConversion& how, uint32_t run_bits, uint64_t count);

// What Encode makes of each value as it is.
std::vector<uint32_t> EncodeReference(const ArrayConversion& how, std::span<const float> values);

// The random bits of 8 elements from `first`, a multiple of 8: RandomBits with a quarter of the
// work per element.
std::array<uint32_t, kElementsPerPhiloxBlock> RandomBitsOfBlock(const RandomStream& random,
                                                                uint64_t first);

}  // namespace dlsim::gpu_check
