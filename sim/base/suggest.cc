// SPDX-License-Identifier: Apache-2.0
#include "sim/base/suggest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "dlsim/error.h"

namespace dlsim::sim {
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

std::string Suggest(std::string_view name, std::span<const std::string_view> candidates) {
  if (name.size() > kMaxNameLength) return "";
  std::string_view best;
  size_t best_distance = 2 + name.size() / 4;  // one more than the farthest that is still near
  for (const std::string_view candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    if (distance >= best_distance || distance >= candidate.size()) continue;
    best = candidate;
    best_distance = distance;
  }
  return std::string(best);
}

std::string ExpectedName(std::string_view name, std::span<const std::string_view> known,
                         std::span<const std::string_view> aliases) {
  std::string text;
  for (const std::string_view candidate : known) {
    text.append(text.empty() ? "one of " : ", ").append(candidate);
  }
  std::vector<std::string_view> all(known.begin(), known.end());
  all.insert(all.end(), aliases.begin(), aliases.end());
  const std::string suggestion = Suggest(name, all);
  if (!suggestion.empty()) text.append(" (did you mean '").append(suggestion).append("'?)");
  return text;
}

size_t ParseChoice(const std::string& option, const std::string& text,
                   const std::vector<std::string_view>& names) {
  const auto found = std::ranges::find(names, text);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  throw UsageError(option, "unknown name", ExpectedName(text, names, {}), Quoted(text));
}

}  // namespace dlsim::sim
