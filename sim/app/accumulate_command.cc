// SPDX-License-Identifier: Apache-2.0
// dlsim accumulate: the sums of a trace with narrow accumulators, against float64.
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/app/commands.h"
#include "sim/app/conversion_options.h"
#include "sim/app/trace_arguments.h"
#include "sim/base/number.h"
#include "sim/base/output_file.h"
#include "sim/base/progress.h"
#include "sim/base/wrap.h"
#include "sim/studies/accumulation_output.h"
#include "sim/studies/reductions.h"
#include "sim/studies/sum_runs.h"
#include "sim/studies/sum_study.h"

namespace dlsim::sim {
namespace {

struct AccumulateOptions {
  TraceArguments trace;
  ConversionOptions conversion;
  SumRunsRequest runs;
  ReductionsRequest reductions;
  float scale = 1.0f;
  ResultPaths results;
  uint64_t top = 5;

  void Visit(OptionRows& option);
};

Json DescribeOptions(const AccumulateOptions& options) {
  Json object = {{"rounding", NameOf(options.conversion.rounding)},
                 {"overflow", NameOf(options.conversion.overflow)},
                 {"subnormals", NameOf(options.conversion.subnormals)},
                 {"seed", options.conversion.seed},
                 {"scale", JsonNumber(static_cast<double>(options.scale))},
                 {"products", options.runs.products.value_or("exact")}};
  const std::optional<Operation>& operation = options.reductions.operation;
  object["operation"] = operation ? Json(NameOf(*operation)) : Json();
  object["tensors"] = options.trace.options.tensors;
  return object;
}

int RunAccumulate(AccumulateOptions options) {
  options.runs.conversion = options.conversion.Of({});
  const std::vector<SumRun> runs = MakeSumRuns(options.runs);
  RefuseProfiles(options.trace);
  const TraceReader trace = OpenTrace(options.trace);
  const ReductionPlan plan = PlanReductions(options.reductions, trace);
  ResultFiles files(options.results);
  if (files.csv) files.csv->Write(SumCsvHeader());
  SumStudyOptions study = {options.scale, options.conversion.seed, {}, {}};
  if (files.csv) {
    study.on_item = [&](const SumItem& item, std::span<const SumOutcome> outcomes) {
      WriteSumCsvRows(item, runs, outcomes, *files.csv);
    };
  }
  std::vector<SumResult> results;
  {
    Progress progress("accumulate", trace.step_count(),
                      options.results.quiet ? ProgressMode::kQuiet : ProgressMode::kAuto,
                      ProgressUnit::kCount);
    study.on_step = [&](size_t done) { progress.Update(done); };
    results = RunSumStudy(trace, plan, runs, study);
  }
  if (files.json) {
    WriteSumJson(FactsOf(trace), options.trace.paths, DescribeOptions(options), runs, results,
                 *files.json);
  }
  files.Commit();
  if (options.results.wants_report()) {
    WriteReport(FormatSumReport(FactsOf(trace), runs, results, options.top));
  }
  return 0;
}

void VisitReductions(OptionRows& option, ReductionsRequest& request) {
  option("--reduce", request.reductions, "SUM",
         "micro (over micro-steps), norm (of squares), sum (of all elements) or axis:K, "
         "repeatable (default: micro if the trace has micro-steps, norm and axis:0)");
  option("--dot", request.dots, "A:B",
         "Dot products of two tensors of one shape, names or patterns, repeatable");
  option("--matmul", request.matmuls, "A:B",
         "Matrix products of [..., K] and [K, N], names or patterns, repeatable");
  option.Choice<Operation>(
      "--operation", request.operation,
      {{NameOf(Operation::kMatMul), Operation::kMatMul},
       {NameOf(Operation::kAttention), Operation::kAttention},
       {NameOf(Operation::kReduction), Operation::kReduction}},
      "KIND",
      "What levels take all sums for: matmul, attention or reduction (default: matmul for axis:K, "
      "--dot and --matmul, else reduction)");
}

void VisitRuns(OptionRows& option, SumRunsRequest& runs) {
  const auto read_level = [&runs](const std::string& text) {
    const size_t level = ParseChoice("--level", text, {"0", "1", "2"});
    runs.levels.push_back(static_cast<PrecisionOptLevel>(level));
  };
  option.ReadEach("--level", read_level, "N",
                  "Cerebras precision_opt_level to emulate: 0, 1 or 2, repeatable (default: all "
                  "three, unless --accumulator is given)");
  option("--format", runs.formats, "F",
         "Format of the inputs, and of 16-bit sums in levels, repeatable (default: cb16, or the "
         "accumulator's)",
         FormatNames());
  option("--accumulator", runs.accumulators, "F",
         "Keep partial sums in this format or in fp32, repeatable", FormatNames());
  const auto read_chunk = [&runs](const std::string& text) {
    const int64_t length = ParseInteger(text, "--chunk");
    if (length < 1) throw UsageError("--chunk", "out of range", "1 or more", Quoted(text));
    runs.chunks.push_back(static_cast<uint64_t>(length));
  };
  option.ReadEach("--chunk", read_chunk, "N",
                  "Terms of a partial sum, repeatable (default: 128 in levels, else all)");
  option("--combiner", runs.combiner, "F",
         "With --accumulator: where partial sums are added, fp32 (default) or a format",
         FormatNames());
  option("--products", runs.products, "F",
         "With --accumulator: round products to this format or fp32 before they are added "
         "(default: exact)",
         FormatNames());
}

void AccumulateOptions::Visit(OptionRows& option) {
  trace.Visit(option, TraceInput::kTrace);
  option.Group(kTryGroup);
  VisitReductions(option, reductions);
  VisitRuns(option, runs);
  conversion.Visit(option);
  option.Read(
      "--scale", [this](const std::string& text) { scale = ParseScale(text); }, "S",
      "Multiply inputs by this loss scale, and divide results (default 1)");
  option.Threads();
  option.Group(kOutputGroup);
  option.Output("--json", results.json, "Write the full result as JSON");
  option.Output("--csv", results.csv, "Write one row per sum and run");
  option("--top", top, "Tensors in each list of the report");
  option("--quiet", results.quiet, "No report and no progress; errors only");
}

}  // namespace

void AddAccumulateCommand(CLI::App& app, Action& action) {
  AddCommand<AccumulateOptions>(
      app, action, RunAccumulate, "accumulate",
      "Run the sums of a trace with narrow accumulators, against float64",
      "Examples:\n"
      "  dlsim accumulate runs/lm-kjv\n"
      "  dlsim accumulate runs/lm-kjv --accumulator fp16 --accumulator bf16 --chunk 64\n"
      "  dlsim accumulate runs/lm-kjv --level 2 --reduce axis:0 --rounding sr --seed 7\n"
      "  dlsim accumulate runs/lm-kjv --dot '*.ln1.weight.grad:*.ln2.weight.grad' --csv -");
}

}  // namespace dlsim::sim
