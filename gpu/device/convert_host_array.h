// SPDX-License-Identifier: Apache-2.0
// Converts arrays of the host on the current device, piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dlsim/convert.h"
#include "dlsim/dtype.h"
#include "gpu/device/slot_ring.h"

namespace dlsim::gpu {

// As ComputeDevice::Encode and Decode.
template <class Code>
void EncodeHostArray(SlotRing& slots, const ArrayConversion& how, DType dtype,
                     std::span<const std::byte> bytes, std::span<Code> codes);
template <class Code>
void DecodeHostArray(SlotRing& slots, const Format& format, std::span<const Code> codes,
                     std::span<float> values);

}  // namespace dlsim::gpu
