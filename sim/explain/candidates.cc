// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/candidates.h"

#include <algorithm>
#include <cmath>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

// The default as a number; nothing for "none" and the like.
std::optional<double> DefaultOf(const ParameterInfo& parameter) {
  try {
    return ParseNumber(parameter.default_text, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Returns the number between `least` and `most` with the most trailing zeros.
int64_t Roundest(int64_t least, int64_t most) {
  for (int64_t unit = 1'000'000'000; unit > 1; unit /= 10) {
    for (const int64_t part : {unit, unit / 2, unit / 4}) {
      if (part < 1) continue;
      const int64_t multiple = (least + part - 1) / part * part;
      if (multiple <= most && multiple > 0) return multiple;
    }
  }
  return least;
}

using Values = std::vector<std::string>;  // "" is the default

void Add(double value, Values& values) {
  if (!(value > 0) || std::isinf(value)) return;
  std::string text = SettingText(value);
  if (std::ranges::find(values, text) == values.end()) values.push_back(std::move(text));
}

// Of intervals that are tried: between two bounds, and in all.
constexpr int64_t kMostSpread = 24;
constexpr size_t kMostIntervals = 40;

// Some policies count one clean step more or fewer.
Values Intervals(const ParameterInfo& parameter, const PathMarks& marks) {
  const double standard = DefaultOf(parameter).value_or(2000);
  Values values;
  if (marks.stated_interval) {
    const auto stated = static_cast<double>(*marks.stated_interval);
    if (stated == standard) return {""};
    Add(stated, values);
    return values;
  }
  if (marks.distances.empty()) {
    if (standard > static_cast<double>(marks.longest_clean)) return {""};
    const int64_t least = marks.longest_clean + 1;
    Add(static_cast<double>(Roundest(least, least * 10)), values);
    return values;
  }
  GrowthDistance common = marks.distances.front();
  common.least = std::max(common.least, std::min(marks.longest_ungrown + 1, common.most));
  for (const GrowthDistance& distance : marks.distances) {
    const GrowthDistance both = {std::max(common.least, distance.least),
                                 std::min(common.most, distance.most)};
    if (both.least <= both.most) common = both;
  }
  if (standard >= static_cast<double>(common.least - 1) &&
      standard <= static_cast<double>(common.most)) {
    values.emplace_back("");
  }
  Add(static_cast<double>(Roundest(common.least, common.most)), values);
  for (const int64_t value : {common.least, common.most, common.least - 1, common.most - 1}) {
    if (value > 0) Add(static_cast<double>(value), values);
  }
  // A log of every tenth step shows an interval only so well.
  const int64_t unit = std::max<int64_t>(1, (common.most - common.least) / kMostSpread);
  for (int64_t value = common.least; value <= common.most; value += unit) {
    Add(static_cast<double>(value), values);
  }
  for (const GrowthDistance& distance : marks.distances) {
    if (values.size() < kMostIntervals)
      Add(static_cast<double>(Roundest(distance.least, distance.most)), values);
  }
  return values;
}

Values Numbers(const std::vector<double>& numbers, double standard) {
  Values values;
  for (const double number : numbers) {
    if (number != standard) Add(number, values);
    if (values.size() == 3) break;
  }
  if (values.empty() || std::ranges::find(numbers, standard) != numbers.end()) {
    values.insert(values.begin(), "");
  }
  return values;
}

Values FirstScales(const ParameterInfo& parameter, const PathMarks& marks) {
  Values values;
  const double standard = DefaultOf(parameter).value_or(0);
  // Where the first fall may have come from many scales, the default is the likeliest.
  const auto found = std::ranges::find(marks.first_scales, standard);
  if (found != marks.first_scales.end() && marks.first_scales.size() > 2) values.emplace_back("");
  for (const double scale : marks.first_scales) {
    if (values.size() == 12) break;
    if (scale != standard) Add(scale, values);
    if (scale == standard && marks.first_scales.size() <= 2) values.emplace_back("");
  }
  return values;
}

Values Factors(const std::vector<double>& ratios, bool inverse, double standard) {
  std::vector<double> numbers;
  for (const double ratio : ratios) numbers.push_back(inverse ? 1 / ratio : ratio);
  return Numbers(numbers, standard);
}

Values ValuesOf(const ParameterInfo& parameter, const PathMarks& marks) {
  const double standard = DefaultOf(parameter).value_or(0);
  Values values;
  switch (parameter.role) {
    case ParameterRole::kStart:
      return FirstScales(parameter, marks);
    case ParameterRole::kInterval:
      return Intervals(parameter, marks);
    case ParameterRole::kGrowth:
      return Factors(marks.rises, false, standard);
    case ParameterRole::kBackoff:
      return Factors(marks.falls, false, standard);
    case ParameterRole::kFactor:
      return marks.falls.empty() ? Factors(marks.rises, false, standard)
                                 : Factors(marks.falls, true, standard);
    case ParameterRole::kOverflows:
      values = {""};
      Add(static_cast<double>(marks.first_fall), values);
      if (marks.first_fall > 1) Add(1, values);
      return values;
    case ParameterRole::kTolerance:
      values = {""};
      for (const double tolerance : marks.tolerances) Add(tolerance, values);
      return values;
    case ParameterRole::kFloor:
      values = {""};
      if (marks.stands_at_lowest || marks.lowest < standard) Add(marks.lowest, values);
      return values;
    case ParameterRole::kCeiling:
      values = {""};
      if (marks.stands_at_highest || marks.highest > standard) Add(marks.highest, values);
      return values;
    case ParameterRole::kOther:
      break;
  }
  if (parameter.name == "consecutive_hysteresis" && marks.first_fall > 1) return {"", "true"};
  if (parameter.name == "raise_error_at_min_scale" && marks.stands_at_lowest) return {"", "false"};
  return {""};
}

struct Choice {
  std::string name;
  Values values;
};

}  // namespace

bool TryCandidates(const PolicyInfo& policy, const PathMarks& marks,
                   const std::function<bool(const ParameterMap&)>& try_parameters) {
  std::vector<Choice> choices;
  for (const ParameterInfo& parameter : policy.parameters) {
    Choice choice = {std::string(parameter.name), ValuesOf(parameter, marks)};
    if (choice.values.empty()) choice.values = {""};
    if (choice.values.size() > 1 || !choice.values[0].empty()) choices.push_back(std::move(choice));
  }
  // In the order of how far the sets are from the first of each, as digits of a counter.
  std::vector<size_t> digits(choices.size(), 0);
  while (true) {
    ParameterMap parameters;
    for (size_t i = 0; i < choices.size(); ++i) {
      const std::string& value = choices[i].values[digits[i]];
      if (!value.empty()) parameters[choices[i].name] = value;
    }
    if (try_parameters(parameters)) return true;
    size_t i = 0;
    while (i < digits.size() && ++digits[i] == choices[i].values.size()) digits[i++] = 0;
    if (i == digits.size()) return false;
  }
}

}  // namespace dlsim::sim
