// SPDX-License-Identifier: Apache-2.0
// Text as a field of a CSV row.
#pragma once

#include <string>

namespace dlsim::sim {

// Returns the text as a field, in quotes where RFC 4180 asks for them.
inline std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted.push_back('"');
    quoted.push_back(c);
  }
  return quoted + '"';
}

}  // namespace dlsim::sim
