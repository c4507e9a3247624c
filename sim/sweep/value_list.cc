// SPDX-License-Identifier: Apache-2.0
#include "sim/sweep/value_list.h"

#include <algorithm>
#include <cmath>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

constexpr size_t kMaxValues = 1'000'000;
constexpr std::string_view kRangeForms = "2^A..2^B, A..B/STEP or A..B*FACTOR";

// Returns the exponent of "2^E".
std::optional<int> PowerOfTwo(std::string_view text, std::string_view place) {
  if (!text.starts_with("2^")) return std::nullopt;
  const double value = ParseNumber(text, place);
  return value > 0 && std::isfinite(value) ? std::optional(std::ilogb(value)) : std::nullopt;
}

ValueItem PowersOfTwo(int first, int last) {
  ValueItem item = {{},
                    ValueRange{ValueRange::Kind::kPowersOfTwo, double(first), double(last), true}};
  for (int exponent = first; exponent <= last; ++exponent) {
    item.values.push_back("2^" + std::to_string(exponent));
  }
  return item;
}

Error BadRange(std::string_view text, std::string_view place, std::string_view problem) {
  return UsageError(place, problem, kRangeForms, Quoted(text));
}

// The numbers of a row; `text` is what the user wrote.
ValueItem Row(const ValueRange& range, double by, std::string_view text, std::string_view place) {
  const bool adds = range.kind == ValueRange::Kind::kArithmetic;
  if (adds ? !(by > 0) : !(by > 1 && range.first > 0)) {
    throw BadRange(text, place, "a range that does not grow");
  }
  // The last one counts as reached in spite of rounding errors.
  const double steps =
      adds ? (range.last - range.first) / by : std::log(range.last / range.first) / std::log(by);
  if (!(steps < static_cast<double>(kMaxValues))) {
    throw UsageError(place, "too many values", "at most " + std::to_string(kMaxValues),
                     Quoted(text));
  }
  ValueItem item = {{}, range};
  const auto count = static_cast<size_t>(std::floor(steps + 1e-9));
  for (size_t i = 0; i <= count; ++i) {
    const double n = static_cast<double>(i);
    item.values.push_back(NumberText(adds ? range.first + n * by : range.first * std::pow(by, n)));
  }
  return item;
}

ValueItem ParseRange(std::string_view text, size_t dots, std::string_view place) {
  const std::string_view first = text.substr(0, dots), rest = text.substr(dots + 2);
  const size_t sign = rest.find_first_of("/*");
  const std::string_view last = rest.substr(0, sign);
  const double low = ParseNumber(first, place), high = ParseNumber(last, place);
  if (low > high) throw BadRange(text, place, "a range that ends before it begins");
  if (sign == rest.npos) {
    const std::optional<int> from = PowerOfTwo(first, place), to = PowerOfTwo(last, place);
    if (!from || !to) throw BadRange(text, place, "a range without a step");
    return PowersOfTwo(*from, *to);
  }
  const double by = ParseNumber(rest.substr(sign + 1), place);
  ValueRange range = {
      rest[sign] == '/' ? ValueRange::Kind::kArithmetic : ValueRange::Kind::kGeometric, low, high,
      true};
  for (const double number : {low, high, by}) range.integers &= number == std::rint(number);
  return Row(range, by, text, place);
}

double DrawUnit(SweepRandom& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

std::string DrawFrom(const ValueRange& range, SweepRandom& random) {
  const double share = DrawUnit(random);
  double value = 0;
  if (range.kind == ValueRange::Kind::kGeometric) {
    value = range.first * std::pow(range.last / range.first, share);
  } else {
    value = range.first + (range.last - range.first) * share;
  }
  value = std::clamp(value, range.first, range.last);
  return NumberText(range.integers ? std::rint(value) : value);
}

}  // namespace

size_t ValueList::count() const {
  size_t count = 0;
  for (const ValueItem& item : items) count += item.values.size();
  return count;
}

const std::string& ValueList::at(size_t i) const {
  auto item = items.begin();
  for (; i >= item->values.size(); ++item) i -= item->values.size();
  return item->values[i];
}

ValueList ParseValueList(std::string_view text, std::string_view place) {
  ValueList list;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    if (item.empty()) throw UsageError(place, "an empty value", "values separated by commas");
    const size_t dots = item.find("..");
    if (dots == item.npos) {
      list.items.push_back({{std::string(item)}});
    } else {
      list.items.push_back(ParseRange(item, dots, place));
    }
    if (comma == text.npos) return list;
    text.remove_prefix(comma + 1);
  }
}

size_t DrawBelow(size_t bound, SweepRandom& random) {
  const auto place = static_cast<size_t>(DrawUnit(random) * static_cast<double>(bound));
  return std::min(place, bound - 1);
}

std::string DrawValue(const ValueList& list, SweepRandom& random) {
  size_t place = DrawBelow(list.count(), random);
  for (const ValueItem& item : list.items) {
    if (place >= item.values.size()) {
      place -= item.values.size();
    } else if (!item.range || item.range->kind == ValueRange::Kind::kPowersOfTwo) {
      return item.values[place];
    } else {
      return DrawFrom(*item.range, random);
    }
  }
  return list.items.front().values.front();
}

}  // namespace dlsim::sim
