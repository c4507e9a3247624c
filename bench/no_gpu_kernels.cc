// SPDX-License-Identifier: Apache-2.0
// Replaces gpu_kernels.cc in a build without CUDA.
#include "bench/gpu_kernels.h"
#include "dlsim/gpu.h"
#include "src/device/compute_device.h"

namespace dlsim::bench {

void RegisterGpuKernels(int device, size_t) {
  gpu::OpenDevice(device);  // throws, and says why
}

}  // namespace dlsim::bench
