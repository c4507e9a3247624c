// SPDX-License-Identifier: Apache-2.0
// Checks of the pointers that callers pass.
#pragma once

#include <cstddef>
#include <string_view>

namespace dlsim::gpu {

// Throws Error `call: what ...` unless `pointer` is to memory of a device, managed memory included,
// and aligned to `alignment` bytes. Returns the device.
int CheckPointer(std::string_view call, std::string_view what, const void* pointer,
                 size_t alignment);

// Throws Error unless memory of this device is used while it is the current one.
void CheckCurrentDevice(std::string_view call, int device);

}  // namespace dlsim::gpu
