// SPDX-License-Identifier: Apache-2.0
// dlsim summaries: what Cerebras' TensorFlow trainer would have logged of each gradient.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "dlsim/error.h"
#include "dlsim/summaries.h"
#include "sim/app/commands.h"
#include "sim/app/conversion_options.h"
#include "sim/app/help_format.h"
#include "sim/app/trace_arguments.h"
#include "sim/app/typed_options.h"
#include "sim/base/json_stream.h"
#include "sim/base/output_file.h"
#include "sim/base/progress.h"
#include "sim/base/quantity.h"
#include "sim/base/wrap.h"
#include "sim/replay/report.h"
#include "sim/replay/source_text.h"
#include "sim/studies/summary_report.h"
#include "sim/studies/summary_rows.h"

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

// The smallest normal value, as a power of two if it is one.
std::string PowerText(double value) {
  int exponent = 0;
  const bool is_power = std::frexp(value, &exponent) == 0.5;
  return is_power ? ScaleText(value) : fmt::format("{:g}", value);
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

void AddDenormalOptions(CLI::App& command, SummariesOptions& options) {
  StartGroup(command, kEmulationGroup);
  AddChoice<Precision>(command, "--precision", options.precision,
                       {{"mixed", Precision::kMixed}, {"float32", Precision::kFloat32}}, "NAME",
                       "What is denormal, as in the trainer: below 2^-14 (mixed, default) or below "
                       "2^-126 (float32)");
  OfferFormats(
      command.add_option("--format", options.format,
                         "Denormal is what is below the smallest normal value of this format"))
      ->option_text("F")
      ->excludes("--precision");
  command
      .add_option(
          "--scale", options.scale,
          "Multiply by S in float32 first, as the trainer does by its loss scale (default 1)")
      ->option_text("S");
  command
      .add_flag("--quantize", options.quantize,
                "Round the scaled values to --format before counting")
      ->needs("--format");
}

}  // namespace

void AddSummariesCommand(CLI::App& app, Action& action) {
  const auto options = std::make_shared<SummariesOptions>();
  CLI::App* command = app.add_subcommand(
      "summaries",
      "Sparsity, denormals, norm and histogram per tensor, as Cerebras' trainer logs them");
  AddTraceArguments(*command, options->trace, TraceInput::kTrace);
  AddDenormalOptions(*command, *options);
  AddThreadsOption(*command);
  StartGroup(*command, kOutputGroup);
  command
      ->add_option("--json", options->results.json,
                   "Write one object per recording and tensor, with histograms; - is standard "
                   "output")
      ->option_text("FILE");
  command
      ->add_flag("--tensorflow-histogram", options->tensorflow_histogram,
                 "Add the buckets of TensorFlow's histogram to --json")
      ->needs("--json");
  command
      ->add_option("--csv", options->results.csv,
                   "Write one row per recording and tensor; - is standard output")
      ->option_text("FILE");
  AddCount(*command, "--top", options->top, "Tensors in the table (default 20)");
  command->add_flag("--quiet", options->results.quiet, "No table and no progress; errors only");
  command->footer(
      "Examples:\n"
      "  dlsim summaries runs/lm-kjv\n"
      "  dlsim summaries runs/lm-kjv --scale 2^15 --csv summaries.csv\n"
      "  dlsim summaries runs/lm-kjv --format cb16 --scale 2^15 --quantize --json -");
  command->callback([options, &action] { action = [options] { return RunSummaries(*options); }; });
}

}  // namespace dlsim::sim
