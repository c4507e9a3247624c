// SPDX-License-Identifier: Apache-2.0
// Shared memory whose size the launch gives.
#pragma once

#include <cuda_runtime.h>

namespace dlsim::gpu {

// Returns the block's LaunchShape::shared_bytes, aligned to 16 bytes; every call the same.
template <class T>
__device__ inline T* DynamicShared() {
  static_assert(alignof(T) <= 16);
#ifdef __CUDACC__
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  return reinterpret_cast<T*>(dynamic_shared);
#else
  return static_cast<T*>(emulation::DynamicSharedMemory());
#endif
}

}  // namespace dlsim::gpu
