// SPDX-License-Identifier: Apache-2.0
#include "dlsim/error.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace dlsim {
namespace {

constexpr size_t kMaxPrintedBytes = 256;

std::string Compose(std::string_view place, std::string_view problem, std::string_view expected,
                    std::string_view got) {
  std::string line;
  if (!place.empty()) line.append(place).append(": ");
  line.append(problem);
  if (!expected.empty()) line.append(", expected ").append(expected);
  if (!got.empty()) line.append(", got ").append(got);
  return line;
}

// Returns the length of the valid UTF-8 sequence at the start of `text`, or 0.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) >= 0xA0;
  const bool beyond_unicode = lead == 0xF4 && byte(1) >= 0x90;
  return overlong || surrogate || beyond_unicode ? 0 : length;
}

// True for what would move the cursor, break the line or reorder the text around it.
bool IsControl(std::string_view sequence) {
  if (sequence.size() == 1) return sequence[0] < 0x20 || sequence[0] == 0x7F;
  if (sequence.size() == 2) return sequence >= "\xC2\x80" && sequence <= "\xC2\x9F";
  if (sequence.size() != 3) return false;
  const bool separator_or_bidi = sequence >= "\xE2\x80\xA8" && sequence <= "\xE2\x80\xAE";
  const bool bidi_isolate = sequence >= "\xE2\x81\xA6" && sequence <= "\xE2\x81\xA9";
  const bool bidi_mark = sequence == "\xE2\x80\x8E" || sequence == "\xE2\x80\x8F";
  return separator_or_bidi || bidi_isolate || bidi_mark;
}

}  // namespace

Error::Error(ErrorKind kind, std::string_view place, std::string_view problem,
             std::string_view expected, std::string_view got)
    : std::runtime_error(Compose(place, problem, expected, got)), kind_(kind) {}

Error InputError(std::string_view place, std::string_view problem, std::string_view expected,
                 std::string_view got) {
  return Error(ErrorKind::kInput, place, problem, expected, got);
}

Error UsageError(std::string_view place, std::string_view problem, std::string_view expected,
                 std::string_view got) {
  return Error(ErrorKind::kUsage, place, problem, expected, got);
}

std::string Printable(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  while (!text.empty() && out.size() < kMaxPrintedBytes) {
    const size_t valid = Utf8Length(text);
    const std::string_view sequence = text.substr(0, std::max<size_t>(valid, 1));
    text.remove_prefix(sequence.size());
    if (valid > 0 && !IsControl(sequence) && sequence != "'" && sequence != "\"") {
      out.append(sequence);
      continue;
    }
    for (const char letter : sequence) {
      const uint8_t byte = static_cast<uint8_t>(letter);
      out.append("\\x").push_back(kHex[byte >> 4]);
      out.push_back(kHex[byte & 15]);
    }
  }
  if (!text.empty()) out.append("...");
  return out;
}

std::string Quoted(std::string_view text) { return "'" + Printable(text) + "'"; }

}  // namespace dlsim
