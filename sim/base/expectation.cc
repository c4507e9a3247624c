// SPDX-License-Identifier: Apache-2.0
#include "sim/base/expectation.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/base/suggest.h"

namespace dlsim::sim {
namespace {

// The longer ones first, as each begins like another.
constexpr std::array<std::pair<std::string_view, Relation>, 6> kOperators = {
    {{"<=", Relation::kAtMost},
     {">=", Relation::kAtLeast},
     {"==", Relation::kEqual},
     {"!=", Relation::kUnequal},
     {"<", Relation::kLess},
     {">", Relation::kGreater}}};

constexpr std::string_view kNone = "none";

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

Error NotAnExpectation(const std::string& place, const std::string& text) {
  return UsageError(place, "not an expectation",
                    "a figure, one of < <= > >= == !=, and a number, such as skipped_steps<=3",
                    Quoted(text));
}

bool CanBeNone(Relation relation) {
  return relation == Relation::kEqual || relation == Relation::kUnequal;
}

// What JsonNumber writes; nothing for other values.
std::optional<double> NumberOf(const Json& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  if (text == "inf") return kInfinity;
  if (text == "-inf") return -kInfinity;
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

// Counts stay integers.
Json FigureJson(double value) {
  constexpr double kExact = 0x1p53;
  if (value == std::trunc(value) && std::fabs(value) < kExact) return static_cast<int64_t>(value);
  return JsonNumber(value);
}

// The member of an object, or null.
const Json& Member(const Json& object, const std::string& name) {
  static const Json null;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : null;
}

std::string FoundText(const std::optional<double>& found) {
  return found ? fmt::format("{}", *found) : std::string(kNone);
}

}  // namespace

Expectation ParseExpectation(const std::string& text, const std::string& place) {
  const size_t at = text.find_first_of("<>=!");
  if (at == std::string::npos) throw NotAnExpectation(place, text);
  const std::string_view rest = std::string_view(text).substr(at);
  for (const auto& [name, relation] : kOperators) {
    if (!rest.starts_with(name)) continue;
    const std::string_view before = Trimmed(std::string_view(text).substr(0, at));
    const std::string_view number = Trimmed(rest.substr(name.size()));
    const size_t colon = before.rfind(':');
    const bool has_subject = colon != std::string_view::npos;
    Expectation expectation;
    expectation.text = text;
    expectation.relation = relation;
    if (has_subject) expectation.subject = Trimmed(before.substr(0, colon));
    expectation.figure = Trimmed(has_subject ? before.substr(colon + 1) : before);
    if (expectation.figure.empty()) throw NotAnExpectation(place, text);
    if (number == kNone && CanBeNone(relation)) return expectation;
    expectation.limit = ParseNumber(number, place);
    return expectation;
  }
  throw NotAnExpectation(place, text);
}

bool Holds(const Expectation& expectation, const std::optional<double>& found) {
  const bool wants_equal = expectation.relation == Relation::kEqual;
  if (!expectation.limit) return wants_equal == !found.has_value();
  if (!found) return false;
  const double limit = *expectation.limit;
  switch (expectation.relation) {
    case Relation::kLess:
      return *found < limit;
    case Relation::kAtMost:
      return *found <= limit;
    case Relation::kGreater:
      return *found > limit;
    case Relation::kAtLeast:
      return *found >= limit;
    case Relation::kEqual:
      return *found == limit;
    case Relation::kUnequal:
      return *found != limit;
  }
  return false;
}

std::vector<std::string> FigureNames(const Json& object) {
  std::vector<std::string> names;
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      for (const std::string& inner : FigureNames(value)) names.push_back(key + "." + inner);
    } else if (value.is_null() || NumberOf(value)) {
      names.push_back(key);
    }
  }
  return names;
}

void RequireFigure(const Expectation& expectation, const std::vector<std::string>& names,
                   const std::string& place) {
  const std::vector<std::string_view> known(names.begin(), names.end());
  for (const std::string_view name : known) {
    if (name == expectation.figure) return;
  }
  throw UsageError(place, WithSuggestion("unknown figure", expectation.figure, known), OneOf(known),
                   Quoted(expectation.figure));
}

std::optional<double> FigureOf(const Json& object, const std::string& name) {
  const size_t dot = name.find('.');
  if (dot != std::string::npos) {
    return FigureOf(Member(object, name.substr(0, dot)), name.substr(dot + 1));
  }
  return NumberOf(Member(object, name));
}

ExpectationOutcome CheckExpectation(const Expectation& expectation, const std::string& run,
                                    const Json& figures) {
  const std::optional<double> found = FigureOf(figures, expectation.figure);
  return {expectation, run, found, Holds(expectation, found)};
}

Json JsonOutcome(const ExpectationOutcome& outcome) {
  Json value;
  if (outcome.found) value = FigureJson(*outcome.found);
  return {{"run", outcome.run.empty() ? Json() : Json(outcome.run)},
          {"expression", outcome.expectation.text},
          {"found", std::move(value)},
          {"holds", outcome.holds}};
}

std::string OutcomeText(const ExpectationOutcome& outcome) {
  return (outcome.run.empty() ? "" : outcome.run + ": ") + outcome.expectation.figure + " is " +
         FoundText(outcome.found) + ", expected " + Printable(outcome.expectation.text);
}

}  // namespace dlsim::sim
