// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/float32_tensors.h"

#include <sstream>

#include "dlsim/trace.h"

namespace dlsim::sim {

std::set<std::string> Float32Tensors(const std::map<std::string, std::string>& metadata) {
  std::set<std::string> names;
  const auto listed = metadata.find(std::string(kAutocastFloat32Key));
  if (listed == metadata.end()) return names;
  std::istringstream lines(listed->second);
  for (std::string name; std::getline(lines, name);) {
    if (!name.empty()) names.insert(name);
  }
  return names;
}

}  // namespace dlsim::sim
