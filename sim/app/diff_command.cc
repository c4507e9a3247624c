// SPDX-License-Identifier: Apache-2.0
// dlsim diff: two runs of one model compared, tensor by tensor and step by step.
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/app/commands.h"
#include "sim/app/expectations.h"
#include "sim/app/shared_options.h"
#include "sim/base/caller.h"
#include "sim/base/files.h"
#include "sim/base/parse.h"
#include "sim/base/table.h"
#include "sim/diff/diff.h"

namespace dlsim::sim {
namespace {

struct DiffOptions {
  std::string a, b;
  TraceOptions trace;
  Alignment alignment = Alignment::kNumber;
  std::string threshold;  // empty: the default
  std::vector<Expectation> expectations;
  ResultPaths results;
  DiffReportOptions report;

  void Visit(OptionRows& option) {
    constexpr const char* kRun = "A trace, in any form that dlsim replay reads, or a profile";
    option.Argument("A", a, kRun).required = true;
    option.Argument("B", b, kRun).required = true;
    VisitReading(option, trace);
    option.Group("Comparison");
    option("--align", alignment, "RULE",
           "How steps are matched: by their number (default), or by their index, counted from the "
           "first step of each run");
    option("--threshold", threshold, "X",
           "Difference of a tensor above which the runs count as diverged (default 1e-4)");
    option.Threads();
    VisitExpect(option, expectations, "max_relative_difference<=1e-6");
    option.Output("--json", results.json, "Write the full result as JSON");
    option.Output("--csv", results.csv, "Write one row per step and tensor");
    option("--top", report.top, "Number of tensors in the table");
    option("--by-layer", report.by_layer,
           "Add a table with the worst tensor of each layer, in file order");
    option("--details", report.details, "Add a table of the steps");
    option("--quiet", results.quiet, "No report and no progress; errors only");
  }
};

double ThresholdOf(const DiffOptions& options) {
  if (options.threshold.empty()) return kDiffThreshold;
  const double threshold = ParseNumber(options.threshold, "--threshold");
  if (threshold >= 0) return threshold;
  throw UsageError("--threshold", "negative number", "0 or more", Quoted(options.threshold));
}

// What shapes the comparison, for the record.
inline void Rows(const DiffOptions& of, RowSink& row) {
  row("threshold", ThresholdOf(of), "difference above which a tensor counts as diverged");
  row("align", of.alignment, "how steps are matched: by `number` or `index`");
  row("tensors", of.trace.tensors, "the pattern of those that are read");
}

int RunDiff(const DiffOptions& options) {
  for (const Expectation& expectation : options.expectations) {
    if (!expectation.subject.empty()) {
      throw UsageError(kExpectOption, "a diff has no runs to choose from", "a figure alone",
                       Quoted(expectation.text));
    }
    RequireFigure(expectation, FigureNames(FiguresOf(Diff())), kExpectOption);
  }
  Diff diff = OpenDiff(options.a, options.b, options.trace, options.alignment);
  diff.threshold = ThresholdOf(options);
  ResultFiles files(options.results);
  if (files.csv) files.csv->Write(DiffCsvHeader());
  CompareRuns(diff, [&](const ComparedStep& step) {
    if (files.csv) files.csv->Write(DiffCsvRows(step));
  });
  if (diff.tensors.items().empty()) {
    const std::string place = Printable(diff.b.path);
    if (diff.unmatched.items().empty()) {
      throw InputError(place, NoTensorMatches(options.trace.tensors));
    }
    const UnmatchedTensor& first = diff.unmatched.items().front();
    throw Error(ErrorKind::kIncomparable, place, "no tensor in common",
                "those of " + Printable(diff.a.path),
                Quoted(first.name) + " " + std::string(NameOf(first.why)));
  }
  std::vector<ExpectationOutcome> outcomes;
  for (const Expectation& expectation : options.expectations) {
    outcomes.push_back(CheckExpectation(expectation, "", FiguresOf(diff)));
  }
  if (files.json) {
    WriteDiffJson(diff, RowsOf(options), outcomes, *files.json);
  }
  files.Commit();
  if (options.results.wants_report()) WriteReport(FormatDiff(diff, options.report));
  return ReportOutcomes(outcomes);
}

}  // namespace

void AddDiffOptionKeys(std::vector<KeyTable>& tables) { AddKeys<DiffOptions>("options", tables); }

Command DiffCommand() {
  return MakeCommand<DiffOptions>(
      RunDiff, "diff",
      "Compare two runs of one model: where they diverge, and by how much in each tensor",
      "Examples:\n"
      "  dlsim diff runs/float32 runs/bf16\n"
      "  dlsim diff runs/before runs/after --threshold 0 --expect 'max_relative_difference==0'\n"
      "  dlsim diff runs/seed-1 runs/seed-2 --tensors '*.weight.grad' --csv diff.csv\n"
      "  dlsim diff profiles/before profiles/after --details\n"
      "  dlsim diff runs/a runs/resumed --align index --json -");
}

}  // namespace dlsim::sim
