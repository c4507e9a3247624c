// SPDX-License-Identifier: Apache-2.0
// dlsim summaries: what Cerebras' TensorFlow trainer would have logged of each gradient.
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <string>

#include "dlsim/error.h"
#include "sim/app/commands.h"
#include "sim/app/conversion_options.h"
#include "sim/app/trace_arguments.h"
#include "sim/base/json_stream.h"
#include "sim/base/output_file.h"
#include "sim/base/progress.h"
#include "sim/base/quantity.h"
#include "sim/base/source_text.h"
#include "sim/base/wrap.h"
#include "sim/replay/report.h"
#include "sim/studies/summary_report.h"
#include "sim/studies/summary_rows.h"
#include "src/summaries/summaries.h"

namespace dlsim::sim {
namespace {

enum class Precision { kMixed, kFloat32 };

struct SummariesOptions {
  TraceArguments trace;
  Precision precision = Precision::kMixed;
  std::optional<std::string> format, scale;
  ResultPaths results;
  bool quantize = false;
  bool tensorflow_histogram = false;
  uint64_t top = 20;

  void Visit(OptionRows& option) {
    trace.Visit(option, TraceInput::kTrace);
    option.Group(kEmulationGroup);
    option.Choice<Precision>(
        "--precision", precision, {{"mixed", Precision::kMixed}, {"float32", Precision::kFloat32}},
        "NAME",
        "Which values count as denormal, as in the trainer: below 2^-14 (mixed, default) or 2^-126 "
        "(float32)");
    option("--format", format, "F",
           "Count as denormal what is below the smallest normal value of this format",
           FormatNames())
        ->excludes("--precision");
    option(
        "--scale", scale, "S",
        "First multiply by S in float32, as the trainer multiplies by its loss scale (default 1)");
    option("--quantize", quantize, "Round the scaled values to --format before counting")
        ->needs("--format");
    option.Threads();
    option.Group(kOutputGroup);
    option.Output("--json", results.json,
                  "Write one object per recording and tensor, with histograms");
    option("--tensorflow-histogram", tensorflow_histogram,
           "Add the buckets of TensorFlow's histogram to --json")
        ->needs("--json");
    option.Output("--csv", results.csv, "Write one row per recording and tensor");
    option("--top", top, "Number of tensors in the table");
    option("--quiet", results.quiet, "No table and no progress; errors only");
  }
};

SummaryOptions ResolveOptions(const SummariesOptions& options) {
  SummaryOptions resolved;
  if (options.precision == Precision::kFloat32) resolved.min_normal = kFloat32MinNormal;
  if (options.scale) resolved.scale = ParseScale(*options.scale);
  if (options.format) {
    const Format format = ParseFormat(*options.format).format;
    resolved.min_normal = static_cast<float>(MinNormal(format));
    if (options.quantize) resolved.quantize = format;
  }
  if (options.tensorflow_histogram) resolved.tensorflow_histogram = TensorflowHistogram::kCount;
  return resolved;
}

Json DescribeOptions(const SummariesOptions& options, const SummaryOptions& resolved) {
  return {{"denormal_below", resolved.min_normal},
          {"format", options.format ? Json(ParseFormat(*options.format).name) : Json()},
          {"scale", resolved.scale},
          {"quantize", options.quantize},
          {"tensors", options.trace.options.tensors}};
}

std::string OptionsLine(const SummariesOptions& options, const SummaryOptions& resolved) {
  std::string line = "denormal: 0 < |x| < " + PowerText(resolved.min_normal);
  if (options.format) line += ", the smallest normal " + ParseFormat(*options.format).name;
  if (options.scale) line += "; scaled by " + PowerText(resolved.scale);
  if (options.quantize) line += "; quantised";
  return line + "\n\n";
}

// Calls visit(row) for every tensor of every recording.
template <class Visit>
void VisitSummaries(const TraceReader& trace, const SummaryOptions& options, ProgressMode mode,
                    const Visit& visit) {
  Progress progress("summaries", trace.step_count(), mode, ProgressUnit::kCount);
  for (size_t i = 0; i < trace.step_count(); ++i) {
    const TraceStep step = trace.Load(i);
    for (const Recording& recording : step.recordings) {
      const std::vector<TensorSummary> summaries = SummarizeRecording(recording, options);
      for (size_t t = 0; t < summaries.size(); ++t) {
        visit(SummaryRow{step.step, recording.micro, recording.tensors[t], summaries[t]});
      }
    }
    progress.Update(i + 1);
  }
}

int RunSummaries(const SummariesOptions& options) {
  const SummaryOptions resolved = ResolveOptions(options);
  RefuseProfiles(options.trace);
  const TraceReader trace = OpenTrace(options.trace);
  ResultFiles files(options.results);
  std::optional<JsonStream> json;
  if (files.json) {
    json.emplace("dlsim.summaries/1", JsonTrace(FactsOf(trace), options.trace.paths),
                 DescribeOptions(options, resolved), *files.json);
    json->BeginArray("recordings");
  }
  if (files.csv) files.csv->Write(SummaryCsvHeader());
  SummaryTotals totals;
  const ProgressMode mode = options.results.quiet ? ProgressMode::kQuiet : ProgressMode::kAuto;
  VisitSummaries(trace, resolved, mode, [&](const SummaryRow& row) {
    totals.Add(row);
    if (json) json->Item(SummaryJson(row));
    if (files.csv) files.csv->Write(SummaryCsvRow(row));
  });
  if (json) {
    json->EndArray();
    json->Array("tensors", totals.totals(), SummaryTotalJson);
    json->Finish();
  }
  files.Commit();
  if (options.results.wants_report()) {
    WriteReport(DescribeTrace(FactsOf(trace)) + OptionsLine(options, resolved) +
                FormatSummaries(totals.totals(), options.top));
  }
  return 0;
}

}  // namespace

void AddSummariesCommand(CLI::App& app, Action& action) {
  AddCommand<SummariesOptions>(
      app, action, RunSummaries, "summaries",
      "Print sparsity, denormals, norm and histogram per tensor, as Cerebras' trainer logs them",
      "Examples:\n"
      "  dlsim summaries runs/lm-kjv\n"
      "  dlsim summaries runs/lm-kjv --scale 2^15 --csv summaries.csv\n"
      "  dlsim summaries runs/lm-kjv --format cb16 --scale 2^15 --quantize --json -");
}

}  // namespace dlsim::sim
