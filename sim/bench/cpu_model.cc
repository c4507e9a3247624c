// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/cpu_model.h"

#include <fstream>

namespace dlsim::sim {

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace dlsim::sim
