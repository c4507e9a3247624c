// SPDX-License-Identifier: Apache-2.0
// What stands in for toolkit_kernels.cu where kernels run on an emulated device.
#include "gpu/check/bench_kernels.h"

namespace dlsim::gpu_check {

std::vector<ToolkitConversion> ToolkitConversions() { return {}; }

}  // namespace dlsim::gpu_check
