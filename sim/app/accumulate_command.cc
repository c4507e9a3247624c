// SPDX-License-Identifier: Apache-2.0
// dlsim accumulate: the sums of a trace with narrow accumulators, against float64.
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/app/commands.h"
#include "sim/app/conversion_options.h"
#include "sim/app/help_format.h"
#include "sim/app/option_values.h"
#include "sim/app/trace_arguments.h"
#include "sim/app/typed_options.h"
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

CLI::Option* AddNames(CLI::App& command, const std::string& option,
                      std::vector<std::string>& target, const std::string& placeholder,
                      const std::string& help) {
  return command.add_option(option, target, help)
      ->option_text(placeholder)
      ->allow_extra_args(false);
}

void AddLevels(CLI::App& command, std::vector<PrecisionOptLevel>& levels) {
  const auto add = [&levels](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      levels.push_back(
          static_cast<PrecisionOptLevel>(ParseChoice("--level", text, {"0", "1", "2"})));
    }
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--level", add,
          "Cerebras precision_opt_level to emulate: 0, 1 or 2, repeatable (default: all three, "
          "unless --accumulator is given)")
      ->option_text("N")
      ->allow_extra_args(false);
}

void AddChunks(CLI::App& command, std::vector<uint64_t>& chunks) {
  const auto add = [&chunks](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      const int64_t length = ParseInteger(text, "--chunk");
      if (length < 1) throw UsageError("--chunk", "out of range", "1 or more", Quoted(text));
      chunks.push_back(static_cast<uint64_t>(length));
    }
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--chunk", add, "Terms of a partial sum, repeatable (default: 128 in levels, else all)")
      ->option_text("N")
      ->allow_extra_args(false);
}

void AddSumOptions(CLI::App& command, AccumulateOptions& options) {
  AddLevels(command, options.runs.levels);
  OfferFormats(AddNames(command, "--format", options.runs.formats, "F",
                        "Format of the inputs, and of 16-bit sums in levels, repeatable (default: "
                        "cb16, or the accumulator's)"));
  OfferFormats(AddNames(command, "--accumulator", options.runs.accumulators, "F",
                        "Keep partial sums in this format or in fp32, repeatable"));
  AddChunks(command, options.runs.chunks);
  OfferFormats(command.add_option(
                   "--combiner", options.runs.combiner,
                   "With --accumulator: where partial sums are added, fp32 (default) or a format"))
      ->option_text("F");
  OfferFormats(command.add_option(
                   "--products", options.runs.products,
                   "With --accumulator: round products to this format or fp32 before they are "
                   "added (default: exact)"))
      ->option_text("F");
  AddConversionOptions(command, options.conversion);
  const auto scale = [&options](const std::string& text) {
    const double value = ParseNumber(text, "--scale");
    if (!(value > 0 && static_cast<float>(value) > 0 &&
          value <= static_cast<double>(std::numeric_limits<float>::max()))) {
      throw UsageError("--scale", "out of range", "a positive float32 number", Quoted(text));
    }
    options.scale = static_cast<float>(value);
  };
  command
      .add_option_function<std::string>(
          "--scale", scale, "Multiply inputs by this loss scale, and divide results (default 1)")
      ->option_text("S");
}

void AddReductionOptions(CLI::App& command, ReductionsRequest& request) {
  AddNames(command, "--reduce", request.reductions, "SUM",
           "micro (over micro-steps), norm (of squares), sum (of all elements) or axis:K, "
           "repeatable (default: micro if the trace has micro-steps, norm and axis:0)");
  AddNames(command, "--dot", request.dots, "A:B",
           "Dot products of two tensors of one shape, names or patterns, repeatable");
  AddNames(command, "--matmul", request.matmuls, "A:B",
           "Matrix products of [..., K] and [K, N], names or patterns, repeatable");
  AddChoice<Operation>(command, "--operation", request.operation,
                       {{NameOf(Operation::kMatMul), Operation::kMatMul},
                        {NameOf(Operation::kAttention), Operation::kAttention},
                        {NameOf(Operation::kReduction), Operation::kReduction}},
                       "KIND",
                       "What levels take all sums for: matmul, attention or reduction (default: "
                       "matmul for axis:K, --dot and --matmul, else reduction)");
}

}  // namespace

void AddAccumulateCommand(CLI::App& app, Action& action) {
  const auto options = std::make_shared<AccumulateOptions>();
  CLI::App* command = app.add_subcommand(
      "accumulate", "Run the sums of a trace with narrow accumulators, against float64");
  AddTraceArguments(*command, options->trace, TraceInput::kTrace);
  StartGroup(*command, kTryGroup);
  AddReductionOptions(*command, options->reductions);
  AddSumOptions(*command, *options);
  AddThreadsOption(*command);
  StartGroup(*command, kOutputGroup);
  command
      ->add_option("--json", options->results.json,
                   "Write the full result as JSON; - is standard output")
      ->option_text("FILE");
  command
      ->add_option("--csv", options->results.csv,
                   "Write one row per sum and run; - is standard output")
      ->option_text("FILE");
  AddCount(*command, "--top", options->top, "Tensors in each list of the report (default 5)");
  command->add_flag("--quiet", options->results.quiet, "No report and no progress; errors only");
  command->footer(
      "Examples:\n"
      "  dlsim accumulate runs/lm-kjv\n"
      "  dlsim accumulate runs/lm-kjv --accumulator fp16 --accumulator bf16 --chunk 64\n"
      "  dlsim accumulate runs/lm-kjv --level 2 --reduce axis:0 --rounding sr --seed 7\n"
      "  dlsim accumulate runs/lm-kjv --dot '*.ln1.weight.grad:*.ln2.weight.grad' --csv -");
  command->callback([options, &action] { action = [options] { return RunAccumulate(*options); }; });
}

}  // namespace dlsim::sim
