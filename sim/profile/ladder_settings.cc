// SPDX-License-Identifier: Apache-2.0
#include "sim/profile/ladder_settings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/base/suggest.h"

namespace dlsim::sim {
namespace {

constexpr std::string_view kPlace = "--scales";

float ParseOneScale(std::string_view text) {
  const double scale = ParseNumber(text, kPlace);
  const bool is_float = scale > 0 && scale <= std::numeric_limits<float>::max();
  if (is_float && static_cast<float>(scale) > 0) return static_cast<float>(scale);
  throw UsageError(kPlace, "out of range", "positive float32 numbers", Quoted(text));
}

// Adds the powers of two from the first to the last number of "A..B".
void AddRange(std::string_view text, size_t dots, std::set<float>& scales) {
  const float low = ParseOneScale(text.substr(0, dots));
  const float high = ParseOneScale(text.substr(dots + 2));
  const size_t before = scales.size();
  float power = std::ldexp(1.0f, std::ilogb(low));
  if (power < low) power *= 2;
  bool has_any = false;
  for (; power <= high && std::isfinite(power); power *= 2, has_any = true) scales.insert(power);
  if (has_any || scales.size() > before) return;
  throw UsageError(kPlace, "no power of two in a range", "a range such as 2^-24..2^40",
                   Quoted(text));
}

void AddScales(std::string_view text, std::set<float>& scales) {
  if (text == "default") {
    const Ladder ladder = DefaultLadder();
    scales.insert(ladder.scales.begin(), ladder.scales.end());
  } else if (const size_t dots = text.find(".."); dots != text.npos) {
    AddRange(text, dots, scales);
  } else {
    scales.insert(ParseOneScale(text));
  }
}

// Formats of the table come first, in its order: the order of the options is no setting.
std::pair<ptrdiff_t, std::string> SortKey(const NamedFormat& format) {
  return {std::ranges::find(kFormats, format.name, &FormatRow::name) - kFormats.begin(),
          format.name};
}

// Stochastic rounding depends on more than magnitudes.
std::vector<Rounding> ParseRoundings(const std::vector<std::string>& texts) {
  std::vector<Rounding> roundings;
  for (const std::string& text : texts) {
    const auto rounding = ParseNamed<Rounding>("--rounding", text);
    if (rounding == Rounding::kStochastic) {
      throw UsageError("--rounding", "a profile cannot answer for stochastic rounding",
                       "rne, rtz, rna, ru or rd; dlsim replay TRACE --rounding sr reads the trace",
                       Quoted(text));
    }
    if (std::ranges::find(roundings, rounding) == roundings.end()) roundings.push_back(rounding);
  }
  std::ranges::sort(roundings);
  return roundings;
}

std::vector<NamedFormat> ParseFormats(const std::vector<std::string>& texts) {
  std::vector<NamedFormat> formats;
  for (const std::string& text : texts) {
    const NamedFormat format = ParseFormat(text);
    const auto is_same = [&](const NamedFormat& other) { return other.name == format.name; };
    if (std::ranges::none_of(formats, is_same)) formats.push_back(format);
  }
  std::ranges::sort(formats, {}, SortKey);
  return formats;
}

// Returns the scales of a list such as "default,2^-3..2^20,1e4", ascending.
std::vector<float> ParseScales(const std::string& list) {
  std::set<float> scales;
  std::string_view rest = list;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find_first_of(", \t\n"), rest.size());
    if (end > 0) AddScales(rest.substr(0, end), scales);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (scales.empty()) {
    throw UsageError(kPlace, "no scales", "a list such as 2^-24..2^40,1e4", Quoted(list));
  }
  return {scales.begin(), scales.end()};
}

}  // namespace

Ladder LadderOf(const LadderSettings& settings) {
  Ladder ladder = DefaultLadder();
  if (!settings.formats.empty()) ladder.formats = ParseFormats(settings.formats);
  if (!settings.roundings.empty()) ladder.roundings = ParseRoundings(settings.roundings);
  if (settings.subnormals) ladder.subnormals = *settings.subnormals;
  if (settings.scales) ladder.scales = ParseScales(*settings.scales);
  return ladder;
}

void SetFormats(const LadderSettings& settings, ProfileSettings& profile) {
  LadderSettings others = settings;
  profile.scaled = TakeScaledFormats(others.formats);
  profile.ladder = LadderOf(others);
  for (const NamedScaledFormat& format : profile.scaled) {
    if (!format.format.delayed) continue;
    throw UsageError("--format", "a profile cannot answer for delayed scaling",
                     "a replay of the trace itself", Quoted(format.name));
  }
  // The order of the options is no setting.
  std::ranges::sort(profile.scaled, {}, &NamedScaledFormat::name);
  const auto same = std::ranges::unique(profile.scaled, {}, &NamedScaledFormat::name);
  profile.scaled.erase(same.begin(), same.end());
}

}  // namespace dlsim::sim
