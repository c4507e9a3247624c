// SPDX-License-Identifier: Apache-2.0
// dlsim accumulate: what reducing gradients over ranks in few bits does, against float64.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/app/commands.h"
#include "sim/app/config_arguments.h"
#include "sim/app/conversion_options.h"
#include "sim/app/expect_option.h"
#include "sim/app/trace_arguments.h"
#include "sim/base/format_or_fp32.h"
#include "sim/base/number.h"
#include "sim/base/output_file.h"
#include "sim/base/progress.h"
#include "sim/base/quantity.h"
#include "sim/base/source_text.h"
#include "sim/base/text_input.h"
#include "sim/base/wrap.h"
#include "sim/studies/reduction_output.h"
#include "sim/studies/reduction_study.h"

namespace dlsim::sim {
namespace {

// Of formats with a narrower exponent than float32, whose gradients need one: as torch.amp starts.
constexpr float kUsualScale = 0x1p16f;

constexpr uint64_t kUsualRanks = 64;

struct AccumulateOptions {
  TraceArguments trace;
  std::optional<uint64_t> ranks;
  uint64_t elements = 256;
  std::vector<std::string> formats;
  std::vector<Algorithm> algorithms;
  std::vector<Division> divisions;
  std::vector<int> levels;
  std::optional<float> scale;
  ConfigArguments config;
  std::vector<Expectation> expectations;
  ResultPaths results;
  uint64_t top = 5;

  void Visit(OptionRows& option);
};

template <class E>
std::vector<E> AllUnlessGiven(const std::vector<E>& given) {
  std::vector<E> values = given;
  if (values.empty()) {
    for (const auto& entry : EnumNames(E())) values.push_back(entry.value);
  }
  return values;
}

Reduction InFormat(const std::string& text, const AccumulateOptions& options) {
  Reduction reduction;
  reduction.format = "fp32";
  reduction.scale = options.scale.value_or(1);
  const std::optional<NamedFormat> narrow = ParseFormatOrFp32("--format", text);
  if (!narrow) return reduction;
  const NamedFormat& named = *narrow;
  if (named.format.mantissa_bits > kMaxWireMantissa) {
    throw UsageError("--format", "too many mantissa bits",
                     fmt::format("at most {}, or fp32", kMaxWireMantissa), Quoted(text));
  }
  reduction.format = named.name;
  reduction.wire = named.format;
  if (!options.scale && named.format.exponent_bits < 8) reduction.scale = kUsualScale;
  return reduction;
}

void AddLevels(const AccumulateOptions& options, std::vector<Reduction>& reductions) {
  const std::vector<std::string> formats =
      options.formats.empty() ? std::vector<std::string>{"cb16"} : options.formats;
  for (const std::string& format : formats) {
    for (const int level : options.levels) {
      Reduction reduction = InFormat(format, options);
      if (!reduction.wire) {
        throw UsageError("--format", "levels need a format of their own", "such as cb16",
                         Quoted(format));
      }
      reduction.division = Division::kAfter;
      reduction.level = level;
      reduction.name = fmt::format("level {} {}", level, reduction.format);
      reductions.push_back(reduction);
    }
  }
}

std::vector<Reduction> MakeReductions(const AccumulateOptions& options) {
  std::vector<Reduction> reductions;
  AddLevels(options, reductions);
  if (!reductions.empty()) return reductions;
  const std::vector<std::string> formats =
      options.formats.empty() ? std::vector<std::string>{"bf16", "fp16", "fp32"} : options.formats;
  for (const std::string& format : formats) {
    for (const Algorithm algorithm : AllUnlessGiven(options.algorithms)) {
      for (const Division division : AllUnlessGiven(options.divisions)) {
        Reduction reduction = InFormat(format, options);
        // All ways to reduce in float32 are good alike: one of them, unless others are asked for.
        const bool first = reductions.empty() || reductions.back().wire;
        if (!reduction.wire && !first && options.algorithms.empty()) continue;
        reduction.algorithm = algorithm;
        reduction.division = division;
        reduction.name =
            fmt::format("{} {} {}", reduction.format, NameOf(algorithm), NameOf(division));
        reductions.push_back(reduction);
      }
    }
  }
  return reductions;
}

// The format in which a configuration sums over ranks. Levels have one of their own.
void Configure(const UpdateFormats& formats, AccumulateOptions& options) {
  if (options.formats.empty() && options.levels.empty() && formats.reduce) {
    options.formats.push_back(*formats.reduce);
  }
}

// The number of ranks: that of the command line, else of the configuration, which is then named.
ReductionOptions StudyOptions(const AccumulateOptions& options,
                              const std::optional<TrainingConfig>& config) {
  ReductionOptions study = {options.ranks.value_or(kUsualRanks), options.elements, ""};
  if (options.ranks || !config || !config->ranks) return study;
  const DataRanks& ranks = *config->ranks;
  study.origin = fmt::format("{}: {} of {}", Counted(static_cast<uint64_t>(ranks.count), "rank"),
                             ranks.from, Printable(InputName(options.config.path())));
  const uint64_t count = static_cast<uint64_t>(ranks.count);
  if (count < 2) {
    study.origin += fmt::format(", which reduces nothing; shown for {} ranks.", kUsualRanks);
    return study;
  }
  study.ranks = std::min<uint64_t>(count, kMaxRanks);
  study.origin += count > kMaxRanks ? fmt::format("; shown for {}.", kMaxRanks) : ".";
  return study;
}

Json DescribeOptions(const AccumulateOptions& options, uint64_t ranks,
                     const std::optional<TrainingConfig>& config) {
  return {{"world_size", ranks},
          {"elements", options.elements},
          {"scale", options.scale ? JsonNumber(static_cast<double>(*options.scale)) : Json()},
          {"tensors", options.trace.options.tensors},
          {"config", config ? JsonConfig(options.config.path(), *config) : Json()}};
}

void RequireRuns(const AccumulateOptions& options, const std::vector<Reduction>& reductions) {
  ReductionResult empty;
  empty.errors = empty.additions = {0};
  empty.safe_scale = 1;
  std::vector<std::string> names;
  for (const Reduction& reduction : reductions) names.push_back(reduction.name);
  for (const Expectation& expectation : options.expectations) {
    RequireSubject(expectation, names, "no such reduction");
    RequireFigure(expectation, FigureNames(JsonRun(empty)), kExpectOption);
  }
}

std::vector<ExpectationOutcome> Check(const AccumulateOptions& options,
                                      const ReductionStudy& study) {
  std::vector<NamedFigures> runs;
  for (const ReductionResult& result : study.reductions) {
    runs.push_back({result.reduction.name, JsonRun(result)});
  }
  return CheckExpectations(options.expectations, runs);
}

ReductionStudy Study(const AccumulateOptions& options, const ReductionOptions& asked,
                     const TraceReader& trace, const std::vector<Reduction>& reductions,
                     ResultFiles& files) {
  Progress progress("accumulate", trace.step_count(),
                    options.results.quiet ? ProgressMode::kQuiet : ProgressMode::kAuto,
                    ProgressUnit::kCount);
  if (files.csv) files.csv->Write(ReductionCsvHeader());
  return RunReductionStudy(
      trace, reductions, asked,
      [&](const TensorAtStep& tensor) {
        if (files.csv) files.csv->Write(ReductionCsvRows(tensor, reductions));
      },
      [&](size_t done) { progress.Update(done); });
}

int RunAccumulate(AccumulateOptions options) {
  const std::optional<TrainingConfig> config = ReadConfig(options.config);
  if (config) Configure(config->updates.formats, options);
  const std::vector<Reduction> reductions = MakeReductions(options);
  RequireRuns(options, reductions);
  RefuseProfiles(options.trace);
  const TraceReader trace = OpenTrace(options.trace);
  ResultFiles files(options.results);
  const ReductionStudy study =
      Study(options, StudyOptions(options, config), trace, reductions, files);
  if (study.groups.groups == 0 || study.sampled == 0) {
    throw InputError(Printable(options.trace.paths.front()), "nothing to reduce",
                     "finite gradients of two ranks, micro-steps or steps");
  }
  const std::vector<ExpectationOutcome> outcomes = Check(options, study);
  const SourceFacts facts = FactsOf(trace);
  if (files.json) {
    WriteReductionJson(JsonTrace(facts, options.trace.paths),
                       DescribeOptions(options, study.options.ranks, config),
                       outcomes.empty() ? Json() : JsonOutcomes(outcomes), study, *files.json);
  }
  files.Commit();
  if (options.results.wants_report()) WriteReport(FormatReductions(facts, study, options.top));
  return ReportOutcomes(outcomes);
}

void ReadRanks(const std::string& text, std::optional<uint64_t>& ranks) {
  const int64_t count = ParseInteger(text, "--world-size");
  if (count < 2 || count > static_cast<int64_t>(kMaxRanks)) {
    throw UsageError("--world-size", "out of range", fmt::format("2 to {}", kMaxRanks),
                     Quoted(text));
  }
  ranks = static_cast<uint64_t>(count);
}

void ReadElements(const std::string& text, uint64_t& elements) {
  std::optional<uint64_t> count;  // 1 or more
  ReadValue("--elements", text, count);
  elements = *count;
}

void VisitReductions(OptionRows& option, AccumulateOptions& options) {
  option.Read(
      "--world-size", [&](const std::string& text) { ReadRanks(text, options.ranks); }, "N",
      "Number of ranks, 2 to 512 (default: what --config says, else 64); ranks beyond the recorded "
      "ones are drawn from these, element by element");
  option("--format", options.formats, "F",
         "Reduce in this format or fp32, repeatable (default: bf16, fp16 and fp32)", FormatNames());
  option("--algorithm", options.algorithms, "NAME",
         "ring, tree or all-to-all (with float32 sums), repeatable (default: all)");
  option("--divide", options.divisions, "NAME",
         "Divide by the number of ranks before the sum, after it, or by its square root at both "
         "times (sqrt), repeatable (default: all)");
  const auto read_level = [&](const std::string& text) {
    options.levels.push_back(static_cast<int>(ParseChoice("--level", text, {"0", "1", "2"})));
  };
  option.ReadEach("--level", read_level, "N",
                  "Instead: sums in cb16 as Cerebras' precision_opt_level 0, 1 or 2 computes them, "
                  "repeatable");
  option.Read(
      "--scale", [&](const std::string& text) { options.scale = ParseScale(text); }, "S",
      "Loss scale of the gradients (default: 2^16 in formats with fewer than 8 exponent bits, else "
      "1)");
  option.Read(
      "--elements", [&](const std::string& text) { ReadElements(text, options.elements); }, "N",
      "Elements of each tensor and step on which errors are measured (default 256)");
}

void AccumulateOptions::Visit(OptionRows& option) {
  trace.Visit(option, TraceInput::kRanksOfTrace);
  option.Group(kTryGroup);
  VisitReductions(option, *this);
  config.Visit(option, ConfigFiles::kOne, "the number of ranks and the format of their sums",
               "--world-size, --format and --level");
  option.Threads();
  option.Group(kOutputGroup);
  option.Output("--json", results.json, "Write the full result as JSON");
  option.Output("--csv", results.csv, "Write one row per step, tensor and reduction");
  option("--top", top, "Number of tensors in the list of the report");
  option("--quiet", results.quiet, "No report and no progress; errors only");
  VisitExpect(option, expectations, "bf16 ring*:error<=0.02");
}

}  // namespace

void AddAccumulateCommand(CLI::App& app, Action& action) {
  AddCommand<AccumulateOptions>(
      app, action, RunAccumulate, "accumulate",
      "Measure the error of summing gradients over ranks in bf16, fp16 or float32",
      "Examples:\n"
      "  dlsim accumulate runs/lm-kjv\n"
      "  dlsim accumulate runs/lm-kjv --world-size 512 --format bf16 --algorithm ring\n"
      "  dlsim accumulate runs/lm-kjv --format fp16 --divide after --scale 2^12\n"
      "  dlsim accumulate runs/lm-kjv --config ds_config.json\n"
      "  dlsim accumulate runs/lm-kjv --level 0 --level 2 --csv -");
}

}  // namespace dlsim::sim
