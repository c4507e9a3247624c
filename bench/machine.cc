// SPDX-License-Identifier: Apache-2.0
#include "bench/machine.h"

#include <fstream>

namespace dlsim::bench {

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// Not sysconf: on some processors it adds up all caches of a socket.
size_t CacheBytes(int level) {
  size_t bytes = 0;
  for (int index = 0;; ++index) {
    const std::string cache =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    std::ifstream level_file(cache + "level"), size_file(cache + "size"), type_file(cache + "type");
    int found = 0;
    size_t kib = 0;
    std::string type;
    if (!(level_file >> found) || !(size_file >> kib) || !(type_file >> type)) return bytes;
    if (type != "Instruction" && (found == level || level == 0)) bytes = kib << 10;
  }
}

}  // namespace dlsim::bench
