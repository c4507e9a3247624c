// SPDX-License-Identifier: Apache-2.0
// What results say of the machine.
#pragma once

#include <string>

namespace dlsim::bench {

// The name of the processor as Linux reports it, or "unknown".
std::string CpuModel();

// The version of NVIDIA's driver, or "unknown".
std::string GpuDriver();

}  // namespace dlsim::bench
