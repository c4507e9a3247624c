// SPDX-License-Identifier: Apache-2.0
// Every call of the CUDA runtime goes through CheckCuda, so that no failure is lost.
#pragma once

#include <cuda_runtime.h>

#include <string_view>

namespace dlsim::gpu {

// Throws Error (exit code 3) `call: what CUDA says` unless `status` is success. The error is taken
// from the runtime, so that the next call starts clean unless the device is lost.
void CheckCuda(cudaError_t status, std::string_view call);

}  // namespace dlsim::gpu
