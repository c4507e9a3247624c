// SPDX-License-Identifier: Apache-2.0
// Tabulates blocks of values of the host and of the current device, batch by batch.
#pragma once

#include <span>

#include "gpu/device/slot_ring.h"
#include "src/device/compute_device.h"

namespace dlsim::gpu {

// As ComputeDevice::Tabulate.
void TabulateBlocks(SlotRing& slots, std::span<const DeviceBlock> blocks, float scale,
                    const ComputeDevice::TakeSums& take);

}  // namespace dlsim::gpu
