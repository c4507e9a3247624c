// SPDX-License-Identifier: Apache-2.0
// dlsim bench: compare two measurements, fail where something became slower; run is beside it.
#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/app/bench_run_command.h"
#include "sim/app/commands.h"
#include "sim/app/file_arguments.h"
#include "sim/app/typed_options.h"
#include "sim/base/json_value.h"
#include "sim/base/number.h"
#include "sim/base/output_file.h"
#include "sim/base/wrap.h"
#include "sim/bench/baselines.h"
#include "sim/bench/bench_runner.h"
#include "sim/bench/callgrind.h"
#include "sim/bench/comparison.h"
#include "sim/bench/comparison_report.h"
#include "sim/bench/kernel_selection.h"

namespace dlsim::sim {
namespace {

constexpr const char* kBaselineDirectory = "bench/baselines";

struct CompareOptions {
  std::vector<std::string> files;
  std::string filter, baseline_directory = kBaselineDirectory;
  std::optional<std::string> threshold, alpha, json;
  bool instructions = false, quiet = false;
};

struct Pair {
  BenchmarkFile base, current;
};

// The baseline of this processor, which no argument names, is an input, too.
BenchmarkFile LoadBaseline(const CompareOptions& options, const BenchmarkFile& current) {
  if (options.json && options.json != "-") {
    CheckOutputBeside("--json", *options.json, "--baseline-dir",
                      {BaselinePath(options.baseline_directory, current)});
  }
  return ReadBaseline(options.baseline_directory, current);
}

// Returns 0.05 for "5%" and for "0.05".
double ParseShare(const std::string& text, const char* option) {
  const bool is_percent = text.ends_with('%');
  const double number = ParseNumber(text.substr(0, text.size() - (is_percent ? 1 : 0)), option);
  const double share = is_percent ? number / 100 : number;
  if (share >= 0 && share < 1) return share;
  const std::string meant = !is_percent && share >= 1 && share < 100 ? text + "%" : "";
  throw UsageError(option,
                   meant.empty() ? "out of range" : "out of range (did you mean '" + meant + "'?)",
                   "0% or more and below 100%", Quoted(text));
}

ComparisonRule RuleFor(BenchKind kind, const CompareOptions& options) {
  ComparisonRule rule;
  if (kind == BenchKind::kInstructions) rule.threshold = 0.01;
  if (options.threshold) rule.threshold = ParseShare(*options.threshold, "--threshold");
  if (options.alpha) rule.alpha = ParseShare(*options.alpha, "--alpha");
  return rule;
}

// Counts what the base has, or what the filter asks for, on the program beside this one.
BenchmarkFile MeasureInstructions(const std::string& filter, const BenchmarkFile* base) {
  BenchRequest request;
  request.filter = filter;
  if (base != nullptr && filter.empty()) {
    std::vector<std::string> names;
    for (const KernelSamples& kernel : base->kernels) names.push_back(kernel.name);
    request.filter = ExactPattern(names);
  }
  return ParseBenchmarks("this build", CountInstructions(FindBenchProgram(), request));
}

BenchmarkFile ReadInstructions(const std::string& path) {
  BenchmarkFile file = ReadBenchmarkFile(path);
  if (file.kind == BenchKind::kInstructions) return file;
  throw InputError(file.place, "holds times", "instructions, from dlsim bench run --instructions");
}

Pair LoadInstructions(const CompareOptions& options) {
  Pair pair;
  if (options.files.empty()) {
    pair.current = MeasureInstructions(options.filter, nullptr);
    pair.base = LoadBaseline(options, pair.current);
    return pair;
  }
  pair.base = ReadInstructions(options.files[0]);
  pair.current = options.files.size() == 2 ? ReadInstructions(options.files[1])
                                           : MeasureInstructions(options.filter, &pair.base);
  return pair;
}

Pair Load(const CompareOptions& options) {
  if (options.instructions) return LoadInstructions(options);
  if (options.files.empty()) throw UsageError("", "no file", "BASE NEW, or NEW and a baseline");
  Pair pair;
  pair.current = ReadBenchmarkFile(options.files.back());
  pair.base = options.files.size() == 2 ? ReadBenchmarkFile(options.files[0])
                                        : LoadBaseline(options, pair.current);
  return pair;
}

Comparison RunCompare(const CompareOptions& options) {
  const KernelSelection selection(options.filter);
  RuleFor(BenchKind::kTime, options);  // bad values fail before the work
  const Pair pair = Load(options);
  const Comparison comparison =
      Compare(pair.base, pair.current, RuleFor(pair.base.kind, options),
              [&](const std::string& name) { return selection.Contains(name); });
  if (options.json) {
    WriteOutput(*options.json,
                DumpJson(ComparisonJson(pair.base, pair.current, comparison), 1) + "\n");
  }
  if (options.json != "-" && !options.quiet) {
    WriteReport(FormatComparison(pair.base, pair.current, comparison));
  }
  return comparison;
}

int RunGate(const CompareOptions& options) {
  const Comparison comparison = RunCompare(options);
  std::vector<std::string> slower;
  for (const KernelComparison& kernel : comparison.kernels) {
    if (kernel.verdict != BenchVerdict::kSlower) continue;
    slower.push_back(
        fmt::format("{} ({:+.1f} %)", Printable(kernel.name), 100 * (kernel.median_ratio - 1)));
  }
  if (slower.empty()) return 0;
  std::fprintf(stderr, "dlsim bench gate: slower: %s\n",
               fmt::format("{}", fmt::join(slower, ", ")).c_str());
  return static_cast<int>(ErrorKind::kCheckFailed);
}

int RunBless(const CompareOptions& options) {
  WriteOutput("-", Bless(options.files.front(), options.baseline_directory) + "\n");
  return 0;
}

void AddCompareOptions(CLI::App& command, CompareOptions& options) {
  command
      .add_option(
          "FILE", options.files,
          "Results of dlsim bench run, or of any program with Google Benchmark; without BASE, the "
          "baseline of this processor")
      ->expected(0, 2)
      ->option_text("[BASE] NEW");
  const auto add = [&](const char* option, auto& target, const char* text,
                       const std::string& help) {
    command.add_option(option, target, help)->option_text(text);
  };
  add("--threshold", options.threshold, "P%",
      "Change of the median that matters (default 5%; of instructions 1%)");
  add("--alpha", options.alpha, "A", "Probability of one false alarm in all (default 0.01)");
  add("--filter", options.filter, "RE", "Benchmarks whose name matches");
  add("--baseline-dir", options.baseline_directory, "DIR",
      std::string("Where baselines lie (default ") + kBaselineDirectory + ")");
  add("--json", options.json, "FILE", "Write the comparison as JSON; - is standard output");
  command.add_flag("--quiet", options.quiet, "No table; errors only");
}

std::string RuleText() {
  Comparison comparison;
  comparison.kernels.resize(2);
  std::string text = DescribeRule(comparison);
  text.replace(text.find("2 kernels"), 9, "the kernels compared");
  return "Rule (with the default options):\n" + text;
}

void AddCompare(CLI::App& bench, Action& action) {
  const auto options = std::make_shared<CompareOptions>();
  CLI::App* command = bench.add_subcommand("compare", "Say which kernels became slower or faster");
  AddCompareOptions(*command, *options);
  command->footer(
      RuleText() +
      "Files that differ in processor, SIMD target, threads, compiler or its flags are\n"
      "incomparable: exit code 4.\n"
      "Examples:\n"
      "  dlsim bench compare base.json new.json\n"
      "  dlsim bench compare new.json --threshold 3% --json verdicts.json");
  command->callback([options, &action] { action = [options] { return RunCompare(*options), 0; }; });
}

void AddGate(CLI::App& bench, Action& action) {
  const auto options = std::make_shared<CompareOptions>();
  CLI::App* command = bench.add_subcommand("gate", "Compare, and fail if a kernel became slower");
  AddCompareOptions(*command, *options);
  command->add_flag("--instructions", options->instructions,
                    "BASE [NEW] hold instructions; without NEW, count now");
  command->footer(
      "Exit code 1 if a kernel is slower by the rule of dlsim bench compare --help.\n"
      "Examples:\n"
      "  dlsim bench gate base.json new.json\n"
      "  dlsim bench gate --instructions base.cg.json");
  command->callback([options, &action] { action = [options] { return RunGate(*options); }; });
}

void AddBless(CLI::App& bench, Action& action) {
  const auto options = std::make_shared<CompareOptions>();
  CLI::App* command = bench.add_subcommand("bless", "Make a result the baseline of its processor");
  command->add_option("FILE", options->files, "Result of dlsim bench run")->required()->expected(1);
  command
      ->add_option("--baseline-dir", options->baseline_directory,
                   std::string("Where baselines lie (default ") + kBaselineDirectory + ")")
      ->option_text("DIR");
  command->footer(
      "Examples:\n"
      "  dlsim bench bless new.json");
  command->callback([options, &action] { action = [options] { return RunBless(*options); }; });
}

}  // namespace

void AddBenchCommand(CLI::App& app, Action& action) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure kernels and commands, and compare measurements");
  bench->require_subcommand(1);
  AddBenchRun(*bench, action);
  AddCompare(*bench, action);
  AddGate(*bench, action);
  AddBless(*bench, action);
  bench->footer("dlsim bench COMMAND --help shows examples.");
}

}  // namespace dlsim::sim
