// SPDX-License-Identifier: Apache-2.0
// dlsim tune: loss-scale parameters for a trace.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/sim/advice.h"
#include "sim/advice/advice.h"
#include "sim/advice/tuning.h"
#include "sim/app/commands.h"
#include "sim/app/shared_options.h"
#include "sim/app/training_config.h"
#include "sim/base/caller.h"
#include "sim/base/files.h"
#include "sim/base/shared_rows.h"
#include "sim/base/table.h"
#include "sim/replay/results.h"

namespace dlsim::sim {
namespace {

struct TuneCommandOptions {
  TraceArguments trace;
  ConfigArguments config;
  Conversion conversion;
  std::vector<std::string> formats;
  std::optional<std::string> policy;
  std::optional<Recipe> recipe;
  std::optional<ConfigTarget> emit;
  ResultPaths results;
  ReplayOptions replay;
  std::vector<std::string> float32;
  uint64_t top = 5;
  bool details = false;
  DeviceChoice device;

  void Visit(OptionRows& option) {
    trace.Visit(option);
    config.Visit(option);
    option("--format", formats, "F",
           "Number format, repeatable (default: fp16 bf16 cb16); see dlsim formats", FormatNames());
    option("--policy", policy, "NAME",
           "Policy to tune (default: torch for fp16, else cerebras-2.10; or the one that --emit "
           "needs)",
           PolicyNames());
    VisitConversion(option, conversion, replay.step.seed);
    VisitRecipe(option, recipe);
    VisitFloat32(option, float32);
    VisitCheck(option, replay.checked);
    VisitComputation(option, device, &replay.step.memory_bytes);
    option.Group(kOutputGroup);
    option("--emit", emit, "STACK",
           "Print only the configuration to paste: zoo, deepspeed, torch, accelerate, trainer or "
           "lightning");
    option.Output("--json", results.json, "Write the full result as JSON");
    option("--top", top, "Number of tensors in each list of the report");
    option("--details", details,
           "Show the evidence: losses of all policies, head-room, the tensors that decide");
    option("--quiet", results.quiet, "No report, notes or progress; errors only");
  }
};

// Takes over formats and policy of a training configuration; one that cannot be tuned, such as a
// static scale, is compared only.
void ApplyConfig(const TrainingConfig& config, const std::string& path, TuneRequest& request) {
  if (request.formats.empty()) request.formats = config.formats;
  if (config.policies.empty()) return;
  const ConfigPolicy& policy = config.policies.front();
  request.current = {InputName(path), policy.name, SettingsOf(policy, {})};
  // In bf16 a policy may only skip steps.
  const bool scales = policy.settings != NoScaler().settings;
  if (scales && FindPolicy(policy.name).name != FindPolicy("static").name) {
    request.policy = policy.name;
  }
}

TuneRequest MakeRequest(const TuneCommandOptions& options,
                        const std::optional<TrainingConfig>& config) {
  TuneRequest request;
  request.formats = options.formats;
  if (config) ApplyConfig(*config, options.config.path(), request);
  if (request.formats.empty() && options.emit) request.formats = {"fp16"};
  if (request.formats.empty()) request.formats = {kDefaultFormats.begin(), kDefaultFormats.end()};
  if (options.emit && request.formats.size() > 1) {
    throw UsageError("--emit", "several formats", "one --format");
  }
  if (options.conversion.rounding == Rounding::kStochastic) {
    throw UsageError("--rounding", "tune compares scales, which stochastic rounding blurs",
                     "one of rne, rtz, rna, ru, rd", "'sr'");
  }
  if (options.conversion.overflow == Overflow::kSaturate) {
    throw UsageError("--overflow", "nothing overflows, so that no scale is too large", "inf",
                     "'saturate'");
  }
  if (options.policy) request.policy = *options.policy;
  if (options.emit && !options.policy) request.policy = PolicyOf(*options.emit);
  if (!options.emit) request.fp16_policies = {"cerebras-2.10", "deepspeed", "torch"};
  request.conversion = options.conversion;
  const Recipe default_recipe = config ? RecipeOf(*config) : Recipe::kAutocast;
  request.recipe = options.recipe.value_or(default_recipe);
  for (const std::string& format : request.formats)
    FamilyOf(TunedPolicy(request, format), ParseFormat(format).name);
  return request;
}

int RunTune(TuneCommandOptions options) {
  const std::optional<TrainingConfig> config = ReadConfigOfUnclippedRuns(options.config);
  TuneRequest request = MakeRequest(options, config);
  AskedAccumulation asked;
  if (config) asked.steps = config->accumulate_steps;
  GradientInput input =
      OpenGradients(asked, options.trace, options.device, options.replay, ForwardAlone::kTaken);
  KeepInFloat32(options.float32, input);
  input.source = KeepSteps(std::move(input.source), options.replay.step.memory_bytes);
  if (options.emit && !input.has_gradients) RefuseWithoutGradients(options.trace);
  const SourceFacts& facts = input.source.facts;
  ResultFiles files(options.results);
  request.tensors = options.trace.options.tensors;
  const Advice advice = AdviseOn(input.source, request, options.replay);
  const TuneResult result = Tune(input.source, request, advice, options.replay);
  if (files.json) {
    WriteJson(RowsOf(result, RowsOf(facts, options.trace.paths), RowsOf(advice),
                     config ? RowsOf(*config) : TellRows()),
              *files.json);
  }
  files.Commit();
  if (options.results.json == "-" || (options.results.quiet && !options.emit)) return 0;
  if (!options.emit) {
    WriteReport(FormatAdviceLines(advice) +
                (options.details ? FormatAdviceDetails(advice, options.top) : "") + "\n" +
                (config ? DescribeConfig(*config) : "") + DescribeTrace(facts) +
                FormatTuneReport(result, options.details));
    return 0;
  }
  const ConfigTarget target = *options.emit;
  if (!Trains(advice.formats.front())) {
    // Instead of a block where no loss scale helps: the reason and what to change.
    const std::string_view mark = target == ConfigTarget::kDeepSpeed ? "// " : "# ";
    std::string text(mark);
    for (const char c : LineOn(advice.formats.front(), 0)) {
      text += c;
      if (c == '\n') text += mark;
    }
    WriteOutput("-", text + "\n");
    return 1;
  }
  const FormatTuning& tuning = result.formats.front();
  const std::optional<std::string> block = ConfigText(target, tuning);
  if (!block) {
    throw UsageError("--emit", "no such configuration",
                     "a format and a --policy that this stack has",
                     Quoted(tuning.format) + " and " + Quoted(tuning.choices.front().policy));
  }
  WriteOutput("-", *block);
  return 0;
}

}  // namespace

Command TuneCommand() {
  return MakeCommand<TuneCommandOptions>(
      RunTune, "tune", "Recommend loss-scaling parameters for recorded gradients",
      "Minimized: mean loss of the recorded steps, where a step loses 1 if it is skipped or not "
      "finite, 0 if its loss scale is safe, else its harm, the mean over its tensors.\n"
      "The stack's defaults are kept unless a change saves more than 1 % of the steps.\n"
      "Excluded: policies under which the original software would raise an error and end the "
      "training are not recommended.\n\n"
      "Examples:\n"
      "  dlsim tune runs/lm-kjv\n"
      "  dlsim tune runs/lm-kjv --format cb16 --json tune.json\n"
      "  dlsim tune runs/lm-kjv --format cb16 --emit zoo > precision.yaml\n"
      "  dlsim tune runs/lm-kjv --config params.yaml\n"
      "  dlsim tune runs/lm-kjv --policy megatron --format fp16");
}

}  // namespace dlsim::sim
