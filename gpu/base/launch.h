// SPDX-License-Identifier: Apache-2.0
// Launches kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "dlsim/gpu/tensor_list.h"
#include "gpu/base/check_cuda.h"

namespace dlsim::gpu {

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
