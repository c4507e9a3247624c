// SPDX-License-Identifier: Apache-2.0
// Every call of the CUDA runtime goes through CheckCuda, so that no failure is lost.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string_view>

namespace dlsim::gpu {

// Throws Error (exit code 3) `call: what CUDA says` unless `status` is success. The error is taken
// from the runtime, so that the next call starts clean unless the device is lost.
void CheckCuda(cudaError_t status, std::string_view call);

// Checks of the pointers that callers pass.

// Throws Error `call: what ...` unless `pointer` is to memory of a device, managed memory included,
// and aligned to `alignment` bytes. Returns the device.
int CheckPointer(std::string_view call, std::string_view what, const void* pointer,
                 size_t alignment);

// Throws Error unless memory of this device is used while it is the current one.
void CheckCurrentDevice(std::string_view call, int device);

}  // namespace dlsim::gpu
