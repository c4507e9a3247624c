// SPDX-License-Identifier: Apache-2.0
#include "src/trace/feature_axes.h"

#include <charconv>
#include <sstream>
#include <system_error>

namespace dlsim {

std::map<std::string, FeatureAxis> FeatureAxes(const TraceStep& step) {
  std::map<std::string, FeatureAxis> axes;
  for (const Recording& recording : step.recordings) {
    const auto stated = recording.metadata.find(std::string(kFeatureAxesKey));
    if (stated == recording.metadata.end()) continue;
    std::istringstream lines(stated->second);
    for (std::string line; std::getline(lines, line);) {
      const size_t end = line.find(' ');
      if (end == line.npos) continue;
      size_t axis = 0;
      const auto read = std::from_chars(line.data(), line.data() + end, axis);
      const bool known = read.ec == std::errc() && read.ptr == line.data() + end;
      axes[line.substr(end + 1)] = known ? FeatureAxis(axis) : std::nullopt;
    }
  }
  return axes;
}

}  // namespace dlsim
