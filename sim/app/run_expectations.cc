// SPDX-License-Identifier: Apache-2.0
#include "sim/app/run_expectations.h"

#include <fnmatch.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "dlsim/error.h"
#include "sim/app/expect_option.h"
#include "sim/base/suggest.h"
#include "sim/replay/replay_json.h"

namespace dlsim::sim {
namespace {

std::string RunName(const SimulationRun& run) {
  return (run.config.empty() ? "" : run.config + "/") + run.format + "/" + run.policy;
}

bool IsAbout(const Expectation& expectation, const SimulationRun& run) {
  return expectation.subject.empty() ||
         fnmatch(expectation.subject.c_str(), RunName(run).c_str(), 0) == 0;
}

// None where it was not recorded: no requirement is met by what was not looked at.
Json HeadroomFigure(const ForwardVerdict& forward) {
  return forward.headroom ? JsonNumber(*forward.headroom) : Json();
}

// The summary of a run, with what the verdict says of its format and of its path, under the names
// that these have in JSON. An interrupted twin has no path of its own there.
Json FiguresOf(const SimulationRun& run, const FormatAdvice& format, const PathInWindows& path) {
  Json figures = JsonSummary(run);
  if (!figures.contains("uncertain_steps")) figures["uncertain_steps"] = 0;
  figures["steps_outside_window"] = format.steps_outside;
  figures["never_finite_steps"] = format.hopeless_steps;
  figures["forward_headroom"] = HeadroomFigure(format.forward);
  figures["values_headroom"] = HeadroomFigure(format.values);
  if (run.resume) return figures;
  figures["steps_inside"] = path.inside;
  figures["steps_below"] = path.below;
  figures["steps_above"] = path.above;
  figures["steps_with_empty_window"] = path.unserved;
  return figures;
}

Json FiguresOf(const SimulationRun& run, const Advice& advice) {
  const auto format = std::ranges::find(advice.formats, run.format, &FormatAdvice::format);
  const auto path = std::ranges::find_if(advice.paths, [&](const PathInWindows& of) {
    return of.format == run.format && of.policy == run.policy && of.config == run.config;
  });
  return FiguresOf(run, *format, path == advice.paths.end() ? PathInWindows() : *path);
}

bool Has(const Json& figures, const std::string& name) {
  return std::ranges::count(FigureNames(figures), name) > 0;
}

void RequireSubject(const Expectation& expectation, std::span<const SimulationRun> runs) {
  if (std::ranges::any_of(runs, [&](const auto& run) { return IsAbout(expectation, run); })) return;
  std::vector<std::string> names;
  for (const SimulationRun& run : runs) {
    if (!run.resume) names.push_back(RunName(run));
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  throw UsageError(kExpectOption, WithSuggestion("no such run", expectation.subject, known),
                   OneOf(known), Quoted(expectation.subject));
}

}  // namespace

void RequireRunFigures(std::span<const Expectation> expectations,
                       std::span<const SimulationRun> runs) {
  for (const Expectation& expectation : expectations) {
    RequireSubject(expectation, runs);
    // Before the runs begin, their figures have no values yet.
    const auto run = std::ranges::find_if(
        runs, [&](const SimulationRun& of) { return of.start && IsAbout(expectation, of); });
    if (run == runs.end()) continue;
    RequireFigure(expectation, FigureNames(FiguresOf(*run, FormatAdvice(), PathInWindows())),
                  kExpectOption);
  }
}

std::vector<ExpectationOutcome> CheckRuns(std::span<const Expectation> expectations,
                                          std::span<const SimulationRun> runs,
                                          const Advice& advice) {
  std::vector<ExpectationOutcome> outcomes;
  if (expectations.empty()) return outcomes;
  for (const SimulationRun& run : runs) {
    if (!run.start) continue;
    const Json figures = FiguresOf(run, advice);
    std::string name = RunName(run);
    if (run.resume) name += " resumed with " + std::string(NameOf(run.resume->kept));
    for (const Expectation& expectation : expectations) {
      if (!IsAbout(expectation, run)) continue;
      if (run.resume && !Has(figures, expectation.figure)) continue;
      outcomes.push_back(CheckExpectation(expectation, name, figures));
    }
  }
  return outcomes;
}

}  // namespace dlsim::sim
