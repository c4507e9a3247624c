// SPDX-License-Identifier: Apache-2.0
#include "sim/base/expectation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "dlsim/error.h"
#include "sim/base/parse.h"

namespace dlsim::sim {
namespace {

struct Operator {
  std::string_view name;
  Relation relation;
  bool (*holds)(double found, double limit);
};

// The longer ones first, as each begins like another.
constexpr Operator kOperators[] = {
    {"<=", Relation::kAtMost, [](double found, double limit) { return found <= limit; }},
    {">=", Relation::kAtLeast, [](double found, double limit) { return found >= limit; }},
    {"==", Relation::kEqual, [](double found, double limit) { return found == limit; }},
    {"!=", Relation::kUnequal, [](double found, double limit) { return found != limit; }},
    {"<", Relation::kLess, [](double found, double limit) { return found < limit; }},
    {">", Relation::kGreater, [](double found, double limit) { return found > limit; }}};

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

}  // namespace

Expectation ParseExpectation(const std::string& text, const std::string& place) {
  const size_t at = text.find_first_of("<>=!");
  if (at == std::string::npos) throw NotAnExpectation(place, text);
  const std::string_view rest = std::string_view(text).substr(at);
  for (const auto& [name, relation, holds] : kOperators) {
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
    const bool can_be_none = relation == Relation::kEqual || relation == Relation::kUnequal;
    if (number == kNone && can_be_none) return expectation;
    expectation.limit = ParseNumber(number, place);
    return expectation;
  }
  throw NotAnExpectation(place, text);
}

bool Holds(const Expectation& expectation, const std::optional<double>& found) {
  if (!expectation.limit) return (expectation.relation == Relation::kEqual) == !found.has_value();
  const auto row = std::ranges::find(kOperators, expectation.relation, &Operator::relation);
  return found && row->holds(*found, *expectation.limit);
}

std::vector<std::string> FigureNames(std::span<const Figure> figures) {
  std::vector<std::string> names;
  for (const Figure& figure : figures) names.push_back(figure.name);
  return names;
}

void RequireFigure(const Expectation& expectation, const std::vector<std::string>& names,
                   const std::string& place) {
  const std::vector<std::string_view> known(names.begin(), names.end());
  if (std::ranges::count(known, expectation.figure) > 0) return;
  throw UsageError(place, WithSuggestion("unknown figure", expectation.figure, known), OneOf(known),
                   Quoted(expectation.figure));
}

ExpectationOutcome CheckExpectation(const Expectation& expectation, const std::string& run,
                                    std::span<const Figure> figures) {
  const auto figure = std::ranges::find(figures, expectation.figure, &Figure::name);
  const auto found = figure == figures.end() ? std::nullopt : figure->value;
  return {expectation, run, found, Holds(expectation, found)};
}

void Rows(const ExpectationOutcome& of, RowSink& row) {
  constexpr double kExact = 0x1p53;
  std::optional<std::variant<int64_t, double>> found;
  if (of.found) {
    found = *of.found;
    const bool is_count = *of.found == std::trunc(*of.found) && std::fabs(*of.found) < kExact;
    if (is_count) found = static_cast<int64_t>(*of.found);
  }
  row("run", of.run, "such as fp16/torch; null if the result is one", kNullIfEmpty);
  row("expression", of.expectation.text, "as it was given");
  row("found", found, "the figure; null if it has no value");
  row("holds", of.holds, "whether it is as required");
}

void AddOutcomeKeys(std::vector<KeyTable>& tables) {
  AddKeys<ExpectationOutcome>("expectations[]", tables);
}

std::string OutcomeText(const ExpectationOutcome& outcome) {
  return (outcome.run.empty() ? "" : outcome.run + ": ") + outcome.expectation.figure + " is " +
         (outcome.found ? fmt::format("{}", *outcome.found) : std::string(kNone)) + ", expected " +
         Printable(outcome.expectation.text);
}

}  // namespace dlsim::sim
