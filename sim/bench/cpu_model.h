// SPDX-License-Identifier: Apache-2.0
// Which processor this is: times of different ones are not comparable.
#pragma once

#include <string>

namespace dlsim::sim {

// The name of the processor as Linux gives it, or "unknown".
std::string CpuModel();

}  // namespace dlsim::sim
