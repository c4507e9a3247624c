// SPDX-License-Identifier: Apache-2.0
#include "gpu/base/check_cuda.h"

#include <string>

#include "dlsim/error.h"

namespace dlsim::gpu {

void CheckCuda(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw InputError(call, std::string(cudaGetErrorString(status)), {}, cudaGetErrorName(status));
}

}  // namespace dlsim::gpu
