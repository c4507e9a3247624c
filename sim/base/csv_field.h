// SPDX-License-Identifier: Apache-2.0
// Text as a field of a CSV row.
#pragma once

#include <charconv>
#include <string>
#include <system_error>

#include "src/base/hidden_text.h"

namespace dlsim::sim {

// True for what a spreadsheet would take for a formula: `-1e5` is a number.
inline bool LooksLikeFormula(const std::string& text) {
  if (text.find_first_of("=+-@") != 0) return false;
  const char* const end = text.data() + text.size();
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error != std::errc() || rest != end;
}

// Returns the text as a field, in quotes where RFC 4180 asks for them. Hidden characters, line ends
// among them, are written as \xHH. A text that a spreadsheet would take for a formula gets an
// apostrophe in front.
inline std::string CsvField(const std::string& text) {
  std::string shown = EscapeHidden(text);
  if (LooksLikeFormula(shown)) shown.insert(shown.begin(), '\'');
  if (shown.find_first_of(",\"") == std::string::npos) return shown;
  std::string quoted = "\"";
  for (const char c : shown) {
    if (c == '"') quoted.push_back('"');
    quoted.push_back(c);
  }
  return quoted + '"';
}

}  // namespace dlsim::sim
