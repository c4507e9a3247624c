// SPDX-License-Identifier: Apache-2.0
#include "src/base/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace dlsim {
namespace {

// First and last of each range, as UTF-8, which is ordered as the code points are.
constexpr auto kHidden = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"\xC2\x80", "\xC2\x9F"},                  // C1
    {"\xC2\xAD", "\xC2\xAD"},                  // soft hyphen
    {"\xD8\x9C", "\xD8\x9C"},                  // Arabic letter mark
    {"\xE1\xA0\x8E", "\xE1\xA0\x8E"},          // Mongolian vowel separator
    {"\xE2\x80\x8B", "\xE2\x80\x8F"},          // zero width, and bidirectional marks
    {"\xE2\x80\xA8", "\xE2\x80\xAE"},          // separators, bidirectional embedding
    {"\xE2\x81\xA0", "\xE2\x81\xA4"},          // word joiner, invisible operators
    {"\xE2\x81\xA6", "\xE2\x81\xA9"},          // bidirectional isolates
    {"\xEF\xBB\xBF", "\xEF\xBB\xBF"},          // byte order mark
    {"\xEF\xBF\xB9", "\xEF\xBF\xBB"},          // interlinear annotation
    {"\xF3\xA0\x80\x80", "\xF3\xA0\x81\xBF"},  // tags
});

}  // namespace

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

bool IsHidden(std::string_view sequence) {
  if (sequence.size() == 1) {
    return static_cast<uint8_t>(sequence[0]) < 0x20 || sequence[0] == 0x7F;
  }
  return std::ranges::any_of(kHidden, [&](const auto& range) {
    return sequence.size() == range.first.size() && sequence >= range.first &&
           sequence <= range.second;
  });
}

std::string EscapeHidden(std::string_view text, std::string_view also, size_t most) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  while (!text.empty() && out.size() < most) {
    const size_t valid = Utf8Length(text);
    const std::string_view sequence = text.substr(0, std::max<size_t>(valid, 1));
    text.remove_prefix(sequence.size());
    if (valid > 0 && !IsHidden(sequence) && also.find(sequence) == also.npos) {
      out.append(sequence);
      continue;
    }
    for (const char letter : sequence) {
      const auto byte = static_cast<uint8_t>(letter);
      out.append("\\x").push_back(kHex[byte >> 4]);
      out.push_back(kHex[byte & 15]);
    }
  }
  if (!text.empty()) out.append("...");
  return out;
}

namespace {

// Names this long are no slip of the hand; the limit bounds the work.
constexpr size_t kMaxNameLength = 64;

char Lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

// Levenshtein's distance but for case, one row of the table at a time.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (Lower(a[i]) == Lower(b[j]) ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, Lower, Lower);
}

std::string_view NearestName(std::string_view name, std::span<const std::string_view> candidates) {
  if (name.size() > kMaxNameLength) return {};
  std::string_view best;
  size_t best_distance = 2 + name.size() / 4;  // one more than the farthest that is still near
  for (const std::string_view candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    if (distance >= best_distance || distance >= candidate.size()) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

}  // namespace dlsim
