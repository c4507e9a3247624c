// SPDX-License-Identifier: Apache-2.0
// Every call of the CUDA runtime goes through CheckCuda, and every launch through Launch, so that
// no failure is lost.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "dlsim/gpu/tensor_list.h"

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

struct LaunchShape {
  uint64_t blocks = 0;  // of a grid of one dimension
  uint32_t threads = 0;
  size_t shared_bytes = 0;  // dynamic
};

// Launches `kernel` on the stream; `call` names it in errors. A grid without blocks is no launch.
template <class... Parameters, class... Arguments>
void Launch(std::string_view call, void (*kernel)(Parameters...), const LaunchShape& shape,
            Stream stream, Arguments&&... arguments) {
  if (shape.blocks == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), call);
}

}  // namespace dlsim::gpu
