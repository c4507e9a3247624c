// SPDX-License-Identifier: Apache-2.0
#include "gpu/base/cuda.h"

#include <cstdint>
#include <string>

#include "dlsim/error.h"

namespace dlsim::gpu {

void CheckCuda(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw InputError(call, std::string(cudaGetErrorString(status)), {}, cudaGetErrorName(status));
}

void CheckPointer(std::string_view call, std::string_view what, const void* pointer,
                  size_t alignment) {
  const std::string name(what);
  if (pointer == nullptr) throw InputError(call, name + " are a null pointer");
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  if (address % alignment != 0) {
    throw InputError(call, name + " are misaligned",
                     "a multiple of " + std::to_string(alignment) + " bytes",
                     "one of " + std::to_string(address & (~address + 1)));
  }
  cudaPointerAttributes attributes = {};
  CheckCuda(cudaPointerGetAttributes(&attributes, pointer), call);
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) {
    throw InputError(call, name + " are not in device memory");
  }
  int current = 0;
  CheckCuda(cudaGetDevice(&current), call);
  if (current == attributes.device) return;
  throw InputError(call, "memory of a device that is not the current one",
                   "device " + std::to_string(current),
                   "device " + std::to_string(attributes.device));
}

}  // namespace dlsim::gpu
