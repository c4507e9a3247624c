// SPDX-License-Identifier: Apache-2.0
#include "sim/base/format_or_fp32.h"

namespace dlsim::sim {

std::optional<NamedFormat> ParseFormatOrFp32(const std::string& place, const std::string& name) {
  if (name == "fp32" || name == "float32") return std::nullopt;
  return ParseFormat(name, place, "fp32");
}

}  // namespace dlsim::sim
