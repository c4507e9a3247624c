// SPDX-License-Identifier: Apache-2.0
#include "sim/app/step_lists.h"

#include <algorithm>
#include <limits>
#include <string>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/base/text_input.h"

namespace dlsim::sim {
namespace {

constexpr size_t kMaxListBytes = size_t{1} << 28;

// Calls parse(entry, place) for each entry of the option's value or of the file that it names.
template <class Parse>
void ForEachEntry(std::string_view value, std::string_view option, const Parse& parse) {
  constexpr std::string_view kSeparators = ", \t\r\n";
  const bool in_file = value.starts_with('@');
  const std::string path(in_file ? value.substr(1) : "");
  const std::string text = in_file ? ReadTextInput(path, kMaxListBytes) : std::string(value);
  const std::string place = in_file ? Printable(path) : std::string(option);
  for (size_t begin = text.find_first_not_of(kSeparators); begin != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
    parse(std::string_view(text).substr(begin, end - begin), std::string_view(place));
    begin = text.find_first_not_of(kSeparators, end);
  }
}

uint64_t ParseCount(std::string_view text, std::string_view entry, std::string_view place) {
  const int64_t count = ParseInteger(text, place);
  if (count < 0) throw UsageError(place, "negative count", "0 or more", Quoted(entry));
  return static_cast<uint64_t>(count);
}

float ParseMagnitude(std::string_view entry, std::string_view place) {
  if (entry == "inf") return std::numeric_limits<float>::infinity();
  if (entry == "nan") return std::numeric_limits<float>::quiet_NaN();
  const double magnitude = ParseNumber(entry, place);
  if (magnitude >= 0) return static_cast<float>(magnitude);
  throw UsageError(place, "not a magnitude", "0 or more, or inf", Quoted(entry));
}

}  // namespace

std::vector<int64_t> ParseOverflowList(std::string_view text) {
  std::vector<int64_t> steps;
  ForEachEntry(text, "--overflow-at", [&](std::string_view entry, std::string_view place) {
    const int64_t step = ParseInteger(entry, place);
    if (step < 0) throw UsageError(place, "not a step", "0 or more", Quoted(entry));
    steps.push_back(step);
  });
  std::ranges::sort(steps);
  const auto repeats = std::ranges::unique(steps);
  steps.erase(repeats.begin(), repeats.end());
  return steps;
}

std::vector<float> ParseMagnitudeList(std::string_view text) {
  std::vector<float> magnitudes;
  ForEachEntry(text, "--absmax", [&](std::string_view entry, std::string_view place) {
    magnitudes.push_back(ParseMagnitude(entry, place));
  });
  return magnitudes;
}

std::vector<HistogramCounts> ParseHistogramList(std::string_view text) {
  std::vector<HistogramCounts> histogram;
  ForEachEntry(text, "--histogram", [&](std::string_view entry, std::string_view place) {
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) {
      throw UsageError(place, "not a pair of counts", "BELOW:ABOVE", Quoted(entry));
    }
    histogram.push_back({ParseCount(entry.substr(0, colon), entry, place),
                         ParseCount(entry.substr(colon + 1), entry, place)});
  });
  return histogram;
}

}  // namespace dlsim::sim
