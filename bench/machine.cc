// SPDX-License-Identifier: Apache-2.0
#include "bench/machine.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

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

// The first line of the file is "NVRM version: ... Kernel Module  580.65.06  ...".
std::string GpuDriver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const bool has_digits_alone = std::ranges::all_of(
        word, [](unsigned char letter) { return std::isdigit(letter) != 0 || letter == '.'; });
    if (has_digits_alone && word.find('.') != std::string::npos) return word;
  }
  return "unknown";
}

}  // namespace dlsim::bench
