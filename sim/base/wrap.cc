// SPDX-License-Identifier: Apache-2.0
#include "sim/base/wrap.h"

namespace dlsim::sim {

std::string Wrap(const std::string& line) {
  std::string text, rest = line;
  size_t width = kTerminalColumns;
  while (rest.size() > width) {
    size_t end = rest.rfind(' ', width);
    if (end == std::string::npos || end == 0) end = rest.find(' ', width);
    if (end == std::string::npos) break;
    text += rest.substr(0, end) + "\n  ";
    rest = rest.substr(end + 1);
    width = kTerminalColumns - 2;
  }
  return text + rest + "\n";
}

}  // namespace dlsim::sim
