// SPDX-License-Identifier: Apache-2.0
#include "sim/app/expectations.h"

#include <fnmatch.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/caller.h"
#include "sim/base/parse.h"
#include "sim/replay/results.h"
#include "sim/scaled/scaled.h"

namespace dlsim::sim {

void VisitExpect(OptionRows& option, std::vector<Expectation>& expectations,
                 const std::string& example) {
  const auto read = [&expectations](const std::string& text) {
    expectations.push_back(ParseExpectation(text, kExpectOption));
  };
  option.Group(kOutputGroup);
  option.Read(kExpectOption, read, "EXPRESSION",
              "Check a figure of the result, such as '" + example +
                  "'; repeatable; if it is not so, exit with code 1 and a line on standard error",
              {}, Takes::kSeveral);
}

int ReportOutcomes(std::span<const ExpectationOutcome> outcomes) {
  int exit_code = 0;
  for (const ExpectationOutcome& outcome : outcomes) {
    if (outcome.holds) continue;
    CurrentCaller().Say(OutcomeText(outcome));
    exit_code = static_cast<int>(ErrorKind::kCheckFailed);
  }
  return exit_code;
}

namespace {

// Returns whether the subject, a pattern or nothing, names a run.
bool IsAbout(const Expectation& expectation, const std::string& run) {
  return expectation.subject.empty() || fnmatch(expectation.subject.c_str(), run.c_str(), 0) == 0;
}

std::string RunName(const SimulationRun& run) {
  return (run.config.empty() ? "" : run.config + "/") + run.format + "/" + run.policy;
}

// The summary of a run, with what the verdict says of its format and of its path, under the names
// that these have in JSON. An interrupted twin has no path of its own there.
std::vector<Figure> FiguresOf(const SimulationRun& run, const FormatAdvice& format,
                              const PathInWindows& path) {
  std::vector<Figure> figures = FiguresOf(run);
  const auto add = [&](const char* name, size_t steps) {
    figures.push_back({name, static_cast<double>(steps)});
  };
  add("steps_outside_window", format.steps_outside);
  add("never_finite_steps", format.hopeless_steps);
  // None where it was not recorded: no requirement is met by what was not looked at.
  figures.push_back({"forward_headroom", format.forward.headroom});
  figures.push_back({"values_headroom", format.values.headroom});
  if (run.resume) return figures;
  add("steps_inside", path.inside);
  add("steps_below", path.below);
  add("steps_above", path.above);
  add("steps_with_empty_window", path.none_safe);
  return figures;
}

std::vector<Figure> FiguresOf(const SimulationRun& run, const Advice& advice) {
  const auto format = std::ranges::find(advice.formats, run.format, &FormatAdvice::format);
  const auto path = std::ranges::find_if(advice.paths, [&](const PathInWindows& of) {
    return of.format == run.format && of.policy == run.policy && of.config == run.config;
  });
  std::vector<Figure> figures =
      FiguresOf(run, *format, path == advice.paths.end() ? PathInWindows() : *path);
  for (Figure& figure : figures) {
    if (!advice.gradients && !figure.name.ends_with("_headroom")) figure.value = std::nullopt;
  }
  return figures;
}

bool Has(std::span<const Figure> figures, const std::string& name) {
  return std::ranges::count(figures, name, &Figure::name) > 0;
}

}  // namespace

void RequireRunFigures(std::span<const Expectation> expectations,
                       std::span<const SimulationRun> runs,
                       std::span<const NamedScaledFormat> scaled) {
  std::vector<std::string> names;
  for (const SimulationRun& run : runs) {
    if (!run.resume) names.push_back(RunName(run));
  }
  for (const NamedScaledFormat& format : scaled) names.push_back(format.name);
  const std::vector<std::string_view> known(names.begin(), names.end());
  for (const Expectation& expectation : expectations) {
    const auto is_subject = [&](const std::string& name) { return IsAbout(expectation, name); };
    if (std::ranges::none_of(names, is_subject)) {
      throw UsageError(kExpectOption, WithSuggestion("no such run", expectation.subject, known),
                       OneOf(known), Quoted(expectation.subject));
    }
    // Before the runs begin, their figures have no values yet.
    std::vector<Figure> figures;
    const auto run = std::ranges::find_if(runs, [&](const SimulationRun& of) {
      return of.start && IsAbout(expectation, RunName(of));
    });
    if (run != runs.end()) figures = FiguresOf(*run, FormatAdvice(), PathInWindows());
    const auto is_about = [&](const NamedScaledFormat& format) {
      return IsAbout(expectation, format.name);
    };
    if (std::ranges::any_of(scaled, is_about)) {
      std::ranges::copy(ScaledFigures({}), std::back_inserter(figures));
    }
    if (!figures.empty()) RequireFigure(expectation, FigureNames(figures), kExpectOption);
  }
}

std::vector<ExpectationOutcome> CheckRuns(std::span<const Expectation> expectations,
                                          std::span<const SimulationRun> runs,
                                          const Advice& advice) {
  std::vector<ExpectationOutcome> outcomes;
  if (expectations.empty()) return outcomes;
  for (const SimulationRun& run : runs) {
    if (!run.start) continue;
    const std::vector<Figure> figures = FiguresOf(run, advice);
    std::string name = RunName(run);
    if (run.resume) name += " resumed with " + std::string(NameOf(run.resume->kept));
    for (const Expectation& expectation : expectations) {
      if (!IsAbout(expectation, RunName(run))) continue;
      const bool of_others = run.resume || Has(ScaledFigures({}), expectation.figure);
      if (of_others && !Has(figures, expectation.figure)) continue;
      outcomes.push_back(CheckExpectation(expectation, name, figures));
    }
  }
  for (const ScaledAdvice& format : advice.scaled) {
    const std::vector<Figure> figures = ScaledFigures(format);
    for (const Expectation& expectation : expectations) {
      if (!IsAbout(expectation, format.format) || !Has(figures, expectation.figure)) continue;
      outcomes.push_back(CheckExpectation(expectation, format.format, figures));
    }
  }
  return outcomes;
}

}  // namespace dlsim::sim
