// SPDX-License-Identifier: Apache-2.0
// What benchmarks on a device need to know about the machine.
#pragma once

#include <string>

namespace dlsim::bench {

// The version of NVIDIA's driver, or "unknown".
std::string GpuDriver();

}  // namespace dlsim::bench
