// SPDX-License-Identifier: Apache-2.0
// dlsim sweep: very many formats, policies and parameters in one pass.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/sim/sweep.h"
#include "sim/app/commands.h"
#include "sim/app/shared_options.h"
#include "sim/app/training_config.h"
#include "sim/base/caller.h"
#include "sim/base/shared_rows.h"
#include "sim/base/table.h"
#include "sim/replay/results.h"
#include "sim/sweep/results.h"

namespace dlsim::sim {
namespace {

struct SweepCommandOptions {
  TraceArguments trace;
  ConfigArguments config;
  std::optional<std::string> grid_file, gridded;
  std::vector<std::string> formats, policies, settings, vary;
  std::optional<uint64_t> random, limit;
  Conversion conversion;
  std::optional<FiniteTest> finite_test;
  AskedAccumulation accumulation;
  ReplayOptions replay;
  RankBy sort = RankBy::kLoss;
  uint64_t top = 20;
  DeviceChoice device;
  ResultPaths results;

  void Visit(OptionRows& option) {
    trace.Visit(option);
    config.Visit(option);
    option("--format", formats, "F", "Number format, repeatable (default: fp16 bf16 cb16)",
           FormatNames());
    option("--policy", policies, "NAME",
           "Loss-scaling policy, repeatable (default: cerebras), or all", PolicyNamesAndAll());
    option("--set", settings, "KEY=VALUE",
           "Parameter of every policy that has it, repeatable; POLICY.KEY=VALUE sets it for one "
           "policy only",
           ParameterNames());
    option(
        "--vary", vary, "KEY=VALUES",
        "Values to try, repeatable: a,b,c; 2^A..2^B (powers of two); A..B/STEP; A..B*FACTOR. KEY "
        "is a parameter, POLICY.KEY, format, policy or rounding",
        ParameterNames());
    option("--grid", grid_file, "FILE",
           "A TOML file with formats, policies, parameters and values to try; see docs/sweep.md");
    option("--random", random, "N", "Try N random combinations instead of all; see --seed");
    option("--limit", limit, "N", "Refuse more than N runs (default 1000000)");
    option.Group("");
    option("--gridded", gridded, "JSON", "What the file of --grid says");
    option.Group(kTryGroup);
    VisitConversion(option, conversion, replay.step.seed);
    VisitRules(option, finite_test, accumulation, replay);
    option("--grad-accum-steps", accumulation.steps, "N",
           "Average N recorded steps into one optimizer step (default 1)");
    VisitComputation(option, device, &replay.step.memory_bytes);
    option.Group(kOutputGroup);
    option("--sort", sort, "BY",
           "Rank by loss (default), skipped, energy-lost, worst-step, first-applied or "
           "final-scale; only loss looks for the safe loss scales, which takes longer");
    option("--top", top, "Rows in the table of the best runs");
    option.Output("--json", results.json, "Write all runs as JSON");
    option.Output("--csv", results.csv, "Write one row per run");
    option("--quiet", results.quiet, "No report, notes or progress; errors only");
  }
};

// Adds axes of the command line, which win over those of the file.
void AddAxes(std::vector<SweepAxis> given, std::vector<SweepAxis>& axes) {
  std::erase_if(axes, [&](const SweepAxis& axis) {
    return std::ranges::any_of(given, [&](const SweepAxis& own) {
      return own.policy == axis.policy && own.key == axis.key;
    });
  });
  for (SweepAxis& axis : given) axes.push_back(std::move(axis));
}

// Adds what the configuration says where neither the command line nor the grid does.
void AddConfig(const TrainingConfig& config, SweepGrid& grid) {
  SimulationRequest request;
  request.formats = grid.formats;
  request.policies = grid.policies;
  for (const std::vector<SweepAxis>* given : {&grid.settings, &grid.axes}) {
    for (const SweepAxis& axis : *given) {
      request.settings.push_back((axis.policy.empty() ? "" : axis.policy + ".") + axis.key + "=");
    }
  }
  const size_t given = request.settings.size();
  ApplyConfig(config, request);
  grid.formats = request.formats;
  grid.policies = request.policies;
  for (size_t i = given; i < request.settings.size(); ++i) {
    grid.settings.push_back(ParseSetting(request.settings[i], "--config"));
  }
}

SweepGrid GridOf(const SweepCommandOptions& options, const std::optional<TrainingConfig>& config) {
  SweepGrid grid;
  if (options.gridded) {
    grid = ParseGrid(*options.gridded);
  } else if (options.grid_file) {
    RequirePython("--grid", "--vary and --set");
  }
  std::vector<SweepAxis> settings, axes;
  for (const std::string& text : options.settings) settings.push_back(ParseSetting(text, "--set"));
  for (const std::string& text : options.vary) axes.push_back(ParseAxis(text, "--vary"));
  AddAxes(std::move(settings), grid.settings);
  AddAxes(std::move(axes), grid.axes);
  if (!options.formats.empty()) grid.formats = options.formats;
  if (!options.policies.empty()) grid.policies = options.policies;
  if (options.random) grid.random = options.random;
  if (options.replay.step.seed != 0) grid.seed = options.replay.step.seed;
  grid.limit = options.limit.value_or(grid.limit);
  SortAxes(grid);
  if (config) AddConfig(*config, grid);
  if (grid.formats.empty()) grid.formats = {kDefaultFormats.begin(), kDefaultFormats.end()};
  if (grid.policies.empty()) grid.policies = {"cerebras"};
  if (grid.roundings.empty()) grid.roundings = {std::string(NameOf(options.conversion.rounding))};
  grid.conversion = options.conversion;
  grid.finite_test = options.finite_test;
  if (config && !grid.finite_test) grid.finite_test = config->finite_test;
  return grid;
}

// What shapes all runs of the call, for the record.
void RecordRows(const SweepCommandOptions& options, const SweepGrid& grid,
                const std::optional<TrainingConfig>& config, RowSink& row) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const SweepAxis& axis : grid.settings) {
    settings.emplace_back(axis.policy.empty() ? axis.key : axis.policy + "." + axis.key,
                          axis.values.texts.front());
  }
  row("overflow", options.conversion.overflow, "what becomes of values that are too large");
  row("subnormals", options.conversion.subnormals, "what becomes of subnormal values");
  row("seed", grid.seed, "of stochastic rounding, and of random combinations");
  row("random", grid.random, "number of random combinations; null: all were tried");
  row("check", options.replay.checked, "which gradients cause a skipped step");
  row("on_fatal", options.replay.on_fatal, "what a fatal error of the policy does");
  row("tensors", options.trace.options.tensors, "the pattern of those that are read");
  row("finite_test", grid.finite_test, "rule that decides whether a step is finite",
      kLeftOutIfEmpty);
  row("set", settings, "parameters that all runs have", kLeftOutIfEmpty);
  row("config", config, "with `--config` only: what was read", kLeftOutIfEmpty);
}

int RunSweep(SweepCommandOptions options) {
  const std::optional<TrainingConfig> config = ReadConfigOfUnclippedRuns(options.config);
  const SweepGrid grid = GridOf(options, config);
  SweepPlan plan = PlanSweep(grid);
  options.replay.step.seed = grid.seed;
  AskedAccumulation micro_steps = options.accumulation;
  if (config && !micro_steps.steps) micro_steps.steps = config->accumulate_steps;
  const GradientInput input = OpenGradients(micro_steps, options.trace, options.device,
                                            options.replay, ForwardAlone::kRefused);
  const SourceFacts& facts = input.source.facts;
  ResultFiles files(options.results);
  SweepOptions sweep = {.replay = options.replay, .tensors = options.trace.options.tensors};
  for (const NamedFormat& format : plan.formats) {
    if (options.sort == RankBy::kLoss) sweep.formats.push_back(format.name);
  }
  SweepRun run = Sweep(input.source, std::move(plan.runs), sweep);
  DropRefused(run.outcomes, plan);
  const SweepResult result = ResultOf(grid, plan, options.sort, std::move(run));
  if (files.json) {
    const auto asked = [&](RowSink& row) { RecordRows(options, grid, config, row); };
    WriteSweepJson(RowsOf(facts, options.trace.paths), asked, result, *files.json);
  }
  if (files.csv) WriteSweepCsv(result, *files.csv);
  files.Commit();
  if (options.results.wants_report()) {
    WriteReport(FormatSweepAdvice(result) + "\n" + (config ? DescribeConfig(*config) : "") +
                DescribeTrace(facts) + FormatSweep(result, options.top));
  }
  return 0;
}

}  // namespace

void AddSweepOptionKeys(std::vector<KeyTable>& tables) {
  AddKeys(
      "options", [](RowSink& row) { RecordRows({}, {}, {}, row); }, tables);
}

Command SweepCommand() {
  return MakeCommand<SweepCommandOptions>(
      RunSweep, "sweep",
      "Try many formats, policies and parameters in one pass over a trace or profile",
      "Examples:\n"
      "  dlsim sweep runs/lm-kjv --policy torch --vary init_scale=2^0..2^32\n"
      "  dlsim sweep runs/profile --vary initial_loss_scale=2^0..2^40 --vary "
      "steps_per_increase=100..2000/100\n"
      "  dlsim sweep runs/profile --config ds.json --vary delayed_shift=1,2,4\n"
      "  dlsim sweep runs/profile --grid grid.toml --random 5000 --seed 1 --json out.json");
}

}  // namespace dlsim::sim
