// SPDX-License-Identifier: Apache-2.0
// The kernels of CUDA devices as benchmarks. Events on the device time them, one call at a time.
#pragma once

#include <cstddef>

namespace dlsim::bench {

// Registers all of them, as gpu/Kernel/format/mode/DRAM/data, for arrays of this length; these are
// made when the first one runs. Throws Error (exit code 3) if the device is not usable.
void RegisterGpuKernels(int device, size_t elements);

}  // namespace dlsim::bench
