// SPDX-License-Identifier: Apache-2.0
// dlsim tune: loss-scale parameters for a trace.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/advice/advice.h"
#include "sim/advice/advice_text.h"
#include "sim/app/commands.h"
#include "sim/app/conversion_options.h"
#include "sim/app/gradient_input.h"
#include "sim/app/trace_arguments.h"
#include "sim/app/typed_options.h"
#include "sim/base/output_file.h"
#include "sim/base/progress.h"
#include "sim/replay/report.h"
#include "sim/replay/source_text.h"
#include "sim/tune/config_block_text.h"
#include "sim/tune/policy_family.h"
#include "sim/tune/tune_report.h"
#include "sim/tune/tuning.h"

namespace dlsim::sim {
namespace {

struct TuneCommandOptions {
  TraceArguments trace;
  ConversionOptions conversion;
  std::vector<std::string> formats;
  std::optional<std::string> policy;
  std::optional<ConfigTarget> emit;
  std::optional<std::string> json;
  ReplayOptions replay;
  uint64_t top = 5;
  bool details = false;
  DeviceChoice device;
  bool quiet = false;
};

TuneRequest MakeRequest(const TuneCommandOptions& options) {
  TuneRequest request;
  request.formats = options.formats;
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
  request.conversion = options.conversion.Of({});
  request.checked = options.replay.checked;
  for (const std::string& format : request.formats)
    FamilyOf(request.policy, ParseFormat(format).name);
  return request;
}

// Leaves out the default formats that the ladder lacks; all its own remain if it has none of them.
void KeepOnLadder(const Ladder& ladder, TuneRequest& request) {
  std::erase_if(request.formats, [&](const std::string& name) { return !HasFormat(ladder, name); });
  if (!request.formats.empty()) return;
  for (const NamedFormat& format : ladder.formats) request.formats.push_back(format.name);
}

// Replays from a source, with a line of progress for each pass.
TuneSource ReplaysOf(const GradientInput& input, const TuneCommandOptions& options) {
  const GradientSource& gradients = *input.source;
  const auto passes = std::make_shared<int>(0);
  TuneSource source;
  source.step_count = gradients.step_count();
  if (input.profile) source.ladder = input.profile->settings().ladder.scales;
  source.replay = [&gradients, &options, passes](std::vector<ReplayRun> runs) {
    const uint64_t bytes = gradients.facts().file_bytes;
    Progress progress("tune, pass " + std::to_string(++*passes), bytes,
                      options.quiet ? ProgressMode::kQuiet : ProgressMode::kAuto);
    ReplayOptions replay = options.replay;
    replay.observer = [&](const ObservedStep& step) {
      progress.Update(bytes * (step.index + 1) / gradients.step_count());
    };
    return Replay(gradients, std::move(runs), replay);
  };
  return source;
}

// One pass that finds the scale windows.
Advice AdviceFor(const GradientSource& gradients, const TuneRequest& request,
                 const TuneCommandOptions& options) {
  WindowConsumer windows(NamedFormats(request.formats), request.conversion, options.replay.step);
  ForEachStep(gradients, options.replay.step, windows);
  return Advise(windows.Take(gradients));
}

std::string Evidence(const Advice& advice, const TuneCommandOptions& options) {
  return options.details ? FormatAdviceDetails(advice, options.top) : "";
}

std::string Block(const TuneResult& result, ConfigTarget target) {
  const FormatTuning& tuning = result.formats.front();
  const std::optional<std::string> text = ConfigText(target, tuning);
  if (text) return *text;
  throw UsageError(
      "--emit", "no such configuration", "a format and a --policy that this stack has",
      Quoted(tuning.format) + " and " + Quoted(tuning.choices.front().family.policy->name));
}

int RunTune(TuneCommandOptions options) {
  TuneRequest request = MakeRequest(options);
  const GradientInput input = OpenGradients({}, options.trace, options.device, options.replay);
  if (!options.quiet) NoteDevice("tune", input);
  if (input.profile) {
    const Ladder& ladder = input.profile->settings().ladder;
    if (options.formats.empty()) KeepOnLadder(ladder, request);
    RequireOnLadder(ladder, request);
  }
  const SourceFacts& facts = input.source->facts();
  const std::unique_ptr<OutputFile> json =
      options.json ? std::make_unique<OutputFile>(*options.json) : nullptr;
  const Advice advice = AdviceFor(*input.source, request, options);
  const TuneResult result = Tune(ReplaysOf(input, options), request);
  if (json) {
    Json document = {{"schema", "dlsim.tune/1"},
                     {"trace", JsonTrace(facts, options.trace.paths)},
                     {"verdict", JsonAdvice(advice)}};
    document.update(JsonTuning(result));
    json->Write(DumpJson(document) + "\n");
    json->Commit();
  }
  const bool json_to_stdout = options.json == "-";
  if (json_to_stdout || (options.quiet && !options.emit)) return 0;
  WriteOutput("-", options.emit ? Block(result, *options.emit)
                                : FormatAdviceLines(advice) + Evidence(advice, options) + "\n" +
                                      DescribeTrace(facts) +
                                      FormatTuneReport(result, options.top, options.details));
  return 0;
}

void AddTuneOptions(CLI::App& command, TuneCommandOptions& options) {
  command
      .add_option("--format", options.formats,
                  "Number format, repeatable (default: fp16 bf16 cb16); see dlsim formats")
      ->option_text("F")
      ->allow_extra_args(false);
  command
      .add_option("--policy", options.policy,
                  "Policy whose parameters to find (default: cerebras-2.10, or that of --emit)")
      ->option_text("NAME");
  AddChoice<ConfigTarget>(command, "--emit", options.emit, "STACK",
                          "Print only the configuration to paste: zoo, deepspeed or torch");
  AddChoice<Checked>(command, "--check", options.replay.checked, "RULE",
                     "Gradients that decide: grad (default), or all with activation gradients");
  AddConversionOptions(command, options.conversion);
  AddDeviceOption(command, options.device);
  command.add_option("--json", options.json, "Write the full result as JSON; - is standard output")
      ->option_text("FILE");
  AddCount(command, "--top", options.top, "Tensors in each list of the report (default 5)");
  command.add_flag("--details", options.details,
                   "The evidence behind the recommendation: losses, windows, tensors");
  command.add_flag("--quiet", options.quiet, "No report, notes or progress; errors only");
}

}  // namespace

void AddTuneCommand(CLI::App& app, Action& action) {
  const auto options = std::make_shared<TuneCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "tune", "Recommend loss-scale parameters for recorded gradients, with the evidence");
  AddTraceArguments(*command, options->trace);
  AddTuneOptions(*command, *options);
  command->footer(std::string("Minimised: ") + kTuneObjective +
                  ".\nDifferences below 1e-4 count as none; then fewer skipped steps, "
                  "head-room and\nthe stack's own defaults decide.\nNot eligible: " +
                  kTuneEligibility +
                  ".\n\n"
                  "Examples:\n"
                  "  dlsim tune runs/lm-kjv\n"
                  "  dlsim tune runs/lm-kjv --format cb16 --json tune.json\n"
                  "  dlsim tune runs/lm-kjv --format cb16 --emit zoo > precision.yaml\n"
                  "  dlsim tune runs/lm-kjv --policy megatron --format fp16");
  command->callback([options, &action] { action = [options] { return RunTune(*options); }; });
}

}  // namespace dlsim::sim
