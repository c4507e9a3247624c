// SPDX-License-Identifier: Apache-2.0
#include "sim/base/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "src/base/hidden_text.h"

namespace dlsim::sim {
namespace {

// What is below stands in JSON as itself or as an escape already.
bool MayBeHidden(char letter) { return static_cast<uint8_t>(letter) >= 0x7F; }

uint32_t CodePoint(std::string_view sequence) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<uint8_t>(sequence[i]));
  };
  if (sequence.size() == 1) return byte(0);
  uint32_t point = byte(0) & (0x7Fu >> sequence.size());
  for (size_t i = 1; i < sequence.size(); ++i) point = point << 6 | (byte(i) & 0x3F);
  return point;
}

// Writes hidden characters as \uXXXX, which means the same text. Only strings hold them.
std::string EscapeInJson(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::string_view sequence = text.substr(0, std::max<size_t>(Utf8Length(text), 1));
    text.remove_prefix(sequence.size());
    if (!MayBeHidden(sequence[0]) || !IsHidden(sequence)) {
      out.append(sequence);
      continue;
    }
    const uint32_t point = CodePoint(sequence);
    if (point < 0x10000) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", point);
    } else {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}\\u{:04x}",
                     0xD800 + ((point - 0x10000) >> 10), 0xDC00 + (point & 0x3FF));
    }
  }
  return out;
}

}  // namespace

std::string DumpJson(const Json& value, int indent) {
  std::string text = value.dump(indent, ' ', false, Json::error_handler_t::replace);
  return std::ranges::any_of(text, MayBeHidden) ? EscapeInJson(text) : text;
}

}  // namespace dlsim::sim
