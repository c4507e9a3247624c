// SPDX-License-Identifier: Apache-2.0
#include "sim/base/format_or_fp32.h"

#include <string_view>

#include "dlsim/error.h"

namespace dlsim::sim {

std::optional<NamedFormat> ParseFormatOrFp32(const std::string& place, const std::string& name) {
  if (name == "fp32" || name == "float32") return std::nullopt;
  try {
    return ParseFormat(name);
  } catch (const Error& error) {
    // "format: unknown name, expected fp16, ..., got ...": the place and one name more.
    constexpr std::string_view kExpected = ", expected ";
    std::string why = error.what();
    why.erase(0, why.find(": ") + 2);
    const size_t names = why.find(kExpected);
    if (names != std::string::npos) why.insert(names + kExpected.size(), "fp32, ");
    throw UsageError(place, why);
  }
}

}  // namespace dlsim::sim
