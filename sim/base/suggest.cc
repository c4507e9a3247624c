// SPDX-License-Identifier: Apache-2.0
#include "sim/base/suggest.h"

#include <algorithm>
#include <array>
#include <utility>

#include "src/base/text.h"

namespace dlsim::sim {
namespace {

// Words for what has a short name here.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kWords = {
    {{"nearest", "rne"},
     {"round-to-nearest", "rne"},
     {"truncate", "rtz"},
     {"toward-zero", "rtz"},
     {"up", "ru"},
     {"down", "rd"},
     {"stochastic", "sr"},
     {"clamp", "saturate"}}};

}  // namespace

std::string Suggest(std::string_view name, std::span<const std::string_view> candidates) {
  for (const auto& [word, meant] : kWords) {
    const bool known = std::ranges::find(candidates, meant) != candidates.end();
    if (known && EqualsIgnoringCase(word, name)) return std::string(meant);
  }
  return std::string(NearestName(name, candidates));
}

std::string WithSuggestion(std::string_view problem, std::string_view name,
                           std::span<const std::string_view> known,
                           std::span<const std::string_view> aliases) {
  std::vector<std::string_view> all(known.begin(), known.end());
  all.insert(all.end(), aliases.begin(), aliases.end());
  const std::string meant = Suggest(name, all);
  return std::string(problem) + (meant.empty() ? "" : " (did you mean '" + meant + "'?)");
}

std::string OneOf(std::span<const std::string_view> known) {
  std::string text;
  for (const std::string_view name : known) {
    text.append(text.empty() ? "one of " : ", ").append(name);
  }
  return text;
}

Error UnknownKey(std::string_view place, const std::string& problem, std::string_view name,
                 std::vector<std::string> keys) {
  std::ranges::sort(keys);
  keys.erase(std::ranges::unique(keys).begin(), keys.end());
  const std::vector<std::string_view> known(keys.begin(), keys.end());
  return UsageError(place, WithSuggestion(problem, name, known), OneOf(known));
}

size_t ParseChoice(const std::string& option, const std::string& text,
                   const std::vector<std::string_view>& names) {
  const auto found = std::ranges::find(names, text);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  throw UsageError(option, WithSuggestion("unknown name", text, names), OneOf(names), Quoted(text));
}

}  // namespace dlsim::sim
