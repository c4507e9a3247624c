// SPDX-License-Identifier: Apache-2.0
// dlsim replay: a trace through formats and policies.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/profile.h"
#include "sim/advice/advice.h"
#include "sim/advice/windows.h"
#include "sim/app/commands.h"
#include "sim/app/expectations.h"
#include "sim/app/shared_options.h"
#include "sim/app/training_config.h"
#include "sim/base/caller.h"
#include "sim/base/files.h"
#include "sim/base/parse.h"
#include "sim/base/shared_rows.h"
#include "sim/base/table.h"
#include "sim/replay/replay_runs.h"
#include "sim/replay/results.h"
#include "sim/replay/simulation.h"
#include "sim/scaled/scaled.h"

namespace dlsim::sim {
namespace {

constexpr size_t kMostPaths = 4, kPlotWidth = 68, kPlotHeight = 12, kShortPlotHeight = 4;

OptimizerGroup ParseOptimizer(const std::string& text, const std::vector<OptimizerGroup>& earlier) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) {
    throw UsageError("--optimizer", "not an optimizer", "NAME=GLOB", Quoted(text));
  }
  OptimizerGroup group = {text.substr(0, equals), text.substr(equals + 1)};
  const auto same = [&](const OptimizerGroup& other) { return other.name == group.name; };
  if (std::any_of(earlier.begin(), earlier.end(), same)) {
    throw UsageError("--optimizer", "name " + Quoted(group.name) + " is given twice");
  }
  return group;
}

struct ReplayCommandOptions {
  TraceArguments trace;
  ConfigArguments config;
  std::optional<Recipe> recipe;
  AskedAccumulation accumulation;
  SimulationRequest request;
  ReplayOptions replay;
  ResultPaths results;
  std::string heat_map;  // bins; empty: none
  ReportOptions report;
  std::vector<Expectation> expectations;
  bool by_layer = false;
  std::vector<std::string> float32;
  DeviceChoice device;

  void Visit(OptionRows& option) {
    trace.Visit(option);
    config.Visit(option, ConfigFiles::kSeveral);
    option("--format", request.formats, "F",
           "Number format, repeatable (default: fp16 bf16 cb16); see dlsim formats",
           FormatNamesAndScaled());
    option("--policy", request.policies, "NAME",
           "Loss-scaling policy, repeatable, or all; see dlsim scaler --list (default: torch for "
           "fp16, cerebras for cb16 and for dumps of Cerebras, none for bf16)",
           PolicyNamesAndAll());
    option("--set", request.settings, "KEY=VALUE",
           "Parameter of every policy that has it, repeatable; POLICY.KEY=VALUE sets it for one "
           "policy only",
           ParameterNames());
    VisitConversion(option, request.conversion, replay.step.seed);
    VisitRecipe(option, recipe);
    VisitFloat32(option, float32);
    VisitRules(option, request.finite_test, accumulation, replay);
    option.Group(kEmulationGroup);
    option("--max-gradient-norm", request.clipping.max_norm, "X",
           "Clip the parameter gradients to this L2 norm");
    option("--max-gradient-value", request.clipping.max_value, "X",
           "Clip each parameter gradient to this magnitude");
    option(
        "--clip-rule", request.clip_rule, "RULE",
        "Formula of the clipping coefficient: torch, fairseq or tf (default: that of the policy)");
    option(
        "--clip-at", request.clipping.domain, "RULE",
        "Clip after unscaling (unscaled, default) or before it (scaled), which emulates a common "
        "bug");
    option("--grad-accum-steps", accumulation.steps, "N",
           "Average N recorded steps into one optimizer step (default 1); not for traces with "
           "micro-steps");
    const auto read = [this](const std::string& text) {
      replay.optimizers.push_back(ParseOptimizer(text, replay.optimizers));
    };
    option.Read("--optimizer", read, "NAME=GLOB",
                "Several optimizers with one loss scale: the name of one, and a pattern for its "
                "gradients; repeatable",
                {}, Takes::kSeveral);
    option("--state", request.states, "KEY=VALUE",
           "Start from a checkpoint: KEY is a field of the policy's state, or scale; repeatable; "
           "POLICY.KEY=VALUE sets it for one policy only");
    option("--resume-at", request.resume_at, "STEP",
           "Also replay each run as if it were interrupted before this step and resumed: from a "
           "checkpoint that holds only the loss scale, and without one");
    VisitComputation(option, device, &replay.step.memory_bytes);
    option.Group(kOutputGroup);
    option.Output("--json", results.json, "Write the full result as JSON");
    option.Output("--csv", results.csv, "Write one row per step, micro-step and tensor");
    option.Output(
        "--summaries", results.summaries,
        "Write sparsity, denormals, norm and histogram of each recorded tensor as JSON, as "
        "Cerebras' trainer logs them");
    VisitExpect(option, expectations, "skipped_steps<=3");
    OptionRow& map =
        option("--heat-map", heat_map, "BINS",
               "Add to the JSON what each tensor loses over time, in at most 200 bins of steps; "
               "--heat-map=BINS for another number");
    map.takes = Takes::kMaybeOne;
    map.value_if_none = "200";
    option("--top", report.top, "Number of tensors in each list of the report");
    option("--by-layer", by_layer,
           "Add a table of the --top layers that lose most at the scales of each policy");
    option("--details", report.details,
           "Add a plot of each run's loss scale and lists of its worst tensors");
    option("--quiet", results.quiet, "No report, notes or progress; errors only");
  }
};

// What shapes all runs of the call, for the record.
inline void Rows(const ReplayCommandOptions& of, RowSink& row) {
  row("rounding", of.request.conversion.rounding, "how values are rounded");
  row("overflow", of.request.conversion.overflow, "what becomes of values that are too large");
  row("subnormals", of.request.conversion.subnormals, "what becomes of subnormal values");
  row("seed", of.replay.step.seed, "of stochastic rounding");
  row("recipe", of.recipe.value_or(Recipe::kAutocast),
      "which values of the forward pass are in 16 bits");
  row("check", of.replay.checked, "which gradients cause a skipped step");
  row("accumulate", of.replay.step.accumulation, "rule for micro-steps");
  row("on_fatal", of.replay.on_fatal, "what a fatal error of the policy does");
  row("tensors", of.trace.options.tensors, "the pattern of those that are read");
  // The following are left out where the option has its default.
  const Clipping& clipping = of.request.clipping;
  const auto unless = [](const auto& value, const auto& default_value) {
    return value == default_value ? std::nullopt : std::optional(value);
  };
  std::vector<std::pair<std::string, std::string>> optimizers;
  for (const OptimizerGroup& group : of.replay.optimizers) {
    optimizers.emplace_back(group.name, group.tensors);
  }
  row("max_gradient_norm", clipping.max_norm, "L2 norm to which gradients are clipped",
      kLeftOutIfEmpty);
  row("max_gradient_value", clipping.max_value, "magnitude to which gradients are clipped",
      kLeftOutIfEmpty);
  row("clip_rule", of.request.clip_rule, "formula of the clipping coefficient", kLeftOutIfEmpty);
  row("clip_at", unless(clipping.domain, Clipping().domain), "`scaled`: clips before unscaling",
      kLeftOutIfEmpty);
  row("grad_accum_steps", unless(of.accumulation.steps.value_or(1), int64_t{1}),
      "recorded steps that make one", kLeftOutIfEmpty);
  row("optimizers", optimizers, "pattern of the gradients of each optimizer", kLeftOutIfEmpty);
  row("state", of.request.states, "fields of the checkpoint from which it starts", kLeftOutIfEmpty);
  row("resume_at", of.request.resume_at, "step before which runs are interrupted", kLeftOutIfEmpty);
}

void RecordRows(const ReplayCommandOptions& options, std::span<const ConfigRecord> configs,
                RowSink& row) {
  const bool several = configs.size() > 1;
  row.Group(options);
  row("config", configs.size() == 1 ? &configs.front() : nullptr,
      "with one `--config`: what was read", kLeftOutIfEmpty);
  row("configs", configs.first(several ? configs.size() : 0),
      "with several: one object per file, as `config`", kLeftOutIfEmpty);
}

// The options that are not the default, on one line; empty if all are.
std::string UnusualOptions(const ReplayCommandOptions& options) {
  const auto defaults = TextsOf(ReplayCommandOptions());
  std::string line;
  for (const auto& told : TextsOf(options)) {
    if (std::ranges::find(defaults, told) != defaults.end()) continue;
    line += (line.empty() ? "options: " : ", ") + told.first + " " + told.second;
  }
  if (options.trace.options.tensors != "*") {
    line += "\nnote: only the tensors that match --tensors are read, so only they decide";
  }
  return line.empty() ? line : line + "\n";
}

// A refused policy is wrong usage; the others have run all the same. Formats refuse alike: one
// line.
int ReportRefusals(const std::vector<SimulationRun>& runs) {
  std::set<std::string> lines;
  for (const SimulationRun& run : runs) {
    if (run.start) continue;
    const ScalerEvent& event = run.result.events.front();
    lines.insert("policy " + run.policy + ": " + event.type + ": " + event.message);
  }
  for (const std::string& line : lines) CurrentCaller().Say(line);
  return lines.empty() ? 0 : static_cast<int>(ErrorKind::kUsage);
}

// The most bins of a heat map; nothing without one.
std::optional<uint64_t> HeatMapBins(const ReplayCommandOptions& options) {
  if (options.heat_map.empty()) return std::nullopt;
  if (!options.results.json) throw UsageError("--heat-map", "needs --json");
  const int64_t bins = ParseInteger(options.heat_map, "--heat-map");
  if (bins < 1) throw UsageError("--heat-map", "no bins", "1 or more", Quoted(options.heat_map));
  return static_cast<uint64_t>(bins);
}

void AddPaths(std::span<const SimulationRun> runs, Advice& advice) {
  for (const SimulationRun& run : runs) {
    const auto format = std::ranges::find(advice.formats, run.format, &FormatAdvice::format);
    if (run.resume || !run.start || format == advice.formats.end()) continue;
    advice.paths.push_back(CompareWithWindows(run.result.steps, format->windows));
    advice.paths.back().format = run.format;
    advice.paths.back().policy = run.policy;
    advice.paths.back().config = run.config;
  }
}

// The windows of the first format that trains with a loss scale, with the paths of its policies;
// empty if none does.
std::string Picture(const Advice& advice, std::span<const SimulationRun> runs, size_t height) {
  const auto drawn = std::ranges::find_if(advice.formats, [](const FormatAdvice& format) {
    return Trains(format) && !HasRangeOfFloat32(ParseFormat(format.format).format);
  });
  if (drawn == advice.formats.end()) return "";
  std::vector<PlottedPath> paths;
  for (const SimulationRun& run : runs) {
    if (run.format != drawn->format || run.resume || !run.start) continue;
    paths.push_back({run.config.empty() ? run.policy : run.config, run.result.steps});
  }
  const auto shown = std::span(paths).first(std::min(paths.size(), kMostPaths));
  return "\n  safe loss scales in " + drawn->format + "\n" +
         PlotWindows(drawn->windows, shown, paths.size(), kPlotWidth, height);
}

// Whether all of it are Cerebras' dumps of activations, or folders of such.
bool AreCerebrasDumps(const std::vector<std::string>& paths) {
  const auto is_dump = [](const std::filesystem::path& path) {
    return path.filename().string().starts_with("act_dumps");
  };
  return std::ranges::all_of(paths, [&](const std::filesystem::path& path) {
    std::error_code unreadable;
    if (is_dump(path)) return true;
    const std::filesystem::directory_iterator files(path, unreadable);
    return !unreadable && std::any_of(begin(files), end(files), is_dump);
  });
}

// Takes the scaled formats out of those that were asked for. Where no other is left, nothing is
// replayed through a policy, and no option asks for what comes of that.
std::vector<NamedScaledFormat> TakeScaled(ReplayCommandOptions& options) {
  std::vector<NamedScaledFormat> scaled = TakeScaledFormats(options.request.formats);
  if (scaled.empty() || !options.request.formats.empty()) return scaled;
  const auto refuse = [](bool asked, std::string_view option) {
    if (asked)
      throw UsageError(option, "scaled formats have no policy", "another --format as well");
  };
  refuse(!options.config.paths.empty(), "--config");
  refuse(!options.request.policies.empty(), "--policy");
  refuse(!options.heat_map.empty(), "--heat-map");
  return scaled;
}

// Steps once more through the source. A CSV file, of which nothing else makes rows, gets them.
void StepScaled(const StepSource& source, std::span<const NamedScaledFormat> formats,
                OutputFile* csv, Advice& advice) {
  if (formats.empty()) return;
  ScaledObserver observer;
  if (csv != nullptr) {
    csv->Write(ScaledCsvHeader());
    observer = [csv](const ObservedScaled& found) { csv->Write(ScaledCsvRows(found)); };
  }
  advice.scaled = ReplayScaled(source, formats, observer);
  if (!advice.formats.empty()) return;
  const auto best = std::ranges::min_element(advice.scaled, {}, VerdictOn);
  advice.best = static_cast<size_t>(best - advice.scaled.begin());
  const std::set<Role>& roles = advice.scaled.front().looked_at;
  advice.looked_at = {roles.begin(), roles.end()};
  advice.parameters_only = !roles.contains(Role::kActGrad);
  advice.channels = true;
}

// Below the smallest normal value of the format asked for, else of fp16, a value is denormal: the
// trainer's limit with mixed precision.
void Summarize(const ReplayCommandOptions& options, OutputFile& out) {
  const std::vector<std::string>& formats = options.request.formats;
  const Format format = ParseFormat(formats.size() == 1 ? formats.front() : "fp16").format;
  const TraceReader trace = OpenTrace(options.trace);
  WriteSummaries(trace, options.trace.paths, static_cast<float>(MinNormal(format)), out);
}

// Refuses an optimizer that took no gradient in the whole replay. Throws Error (exit code 2).
void CheckOptimizers(const std::vector<OptimizerGroup>& optimizers,
                     const std::vector<SimulationRun>& runs) {
  const auto replayed = [](const SimulationRun& run) { return !run.result.steps.empty(); };
  if (std::ranges::none_of(runs, replayed)) return;
  for (size_t g = 0; g < optimizers.size(); ++g) {
    const auto in_step = [&](const ReplayStep& step) { return step.optimizers[g].has_gradients; };
    const auto in_run = [&](const SimulationRun& run) {
      return std::ranges::any_of(run.result.steps, in_step);
    };
    if (std::ranges::any_of(runs, in_run)) continue;
    throw UsageError("--optimizer", "no parameter gradient matches " + Quoted(optimizers[g].name),
                     "a pattern of names in the trace", Quoted(optimizers[g].tensors));
  }
}

// Steps through the source; returns what its windows say.
Advice StepThrough(const StepSource& source, ReplayCommandOptions& options,
                   std::optional<uint64_t> heat_map_bins, const ConfiguredRuns& configured,
                   ResultFiles& files, std::vector<SimulationRun>& runs) {
  const std::vector<std::string> configs = ConfigsOfRuns(runs);
  if (files.csv) files.csv->Write(CsvHeader(configs));
  options.replay.observer = [&](const ObservedStep& step) {
    if (files.csv) WriteCsvRows(step, configs, *files.csv);
  };
  WindowFinder windows(source,
                       {.formats = configured.formats,
                        .conversion = options.request.conversion,
                        .recipe = options.recipe.value_or(Recipe::kAutocast),
                        .tensors = options.trace.options.tensors},
                       options.replay);
  // Whether an output needs the figures of single tensors, and not only their summary.
  const bool wants_tensors = options.results.json || options.results.csv ||
                             options.report.details || options.by_layer ||
                             !options.expectations.empty();
  for (SimulationRun& run : runs) {
    if (run.start && !wants_tensors) run.start->tensor_records = TensorRecords::kHarm;
  }
  Simulate(source, options.replay, runs, heat_map_bins,
           [&](size_t i, const Step& step) { windows.Take(i, step); });
  CheckOptimizers(options.replay.optimizers, runs);
  return windows.Conclude();
}

// After the verdict: a picture, what the user asked for, and with --details everything.
std::string ReportText(const Advice& advice, const std::vector<SimulationRun>& runs,
                       const SourceFacts& facts, const std::string& configured,
                       const ReplayCommandOptions& options) {
  const std::string unusual = configured + UnusualOptions(options);
  const std::string asked = unusual.empty() ? "" : "\n" + unusual;
  const bool details = options.report.details;
  std::string text;
  if (!advice.gradients || advice.formats.empty()) {
    text = FormatAdviceDetails(advice, options.report.top) + asked + DescribeTrace(facts);
    return text;
  }
  const bool compares =
      std::ranges::any_of(runs, [](const SimulationRun& run) { return !run.config.empty(); });
  const bool lists_runs = details || compares || !options.request.policies.empty();
  if (!lists_runs) text = NotesText(facts);
  text += Picture(advice, runs, details ? kPlotHeight : kShortPlotHeight);
  if (details) text += FormatAdviceDetails(advice, options.report.top);
  if (options.by_layer) text += FormatLayerLosses(runs, options.report.top);
  text += asked;
  if (lists_runs) {
    if (!details) text += "\n" + FormatPaths(advice);
    return text + (asked.empty() ? "\n" : "") + FormatReport(facts, runs, options.report);
  }
  std::string paths;
  for (const std::string& path : options.trace.paths) paths += " " + Printable(path);
  return text + Wrap("Next: dlsim tune" + paths + ", or this with --details.");
}

// Fits runs to a profile, which has no values to look at: leaves out their clipping, and the runs
// that its tables do not answer, with a note. Throws UsageError for such a run if the user named
// its policy.
void FitToProfile(const ProfileFacts& profile, bool named, std::vector<SimulationRun>& runs) {
  std::string left_out;
  std::erase_if(runs, [&](SimulationRun& run) {
    if (!run.start) return false;
    if (run.start->clipping.enabled()) {
      run.start->clipping = {};
      run.notes.push_back(
          "clipping is left out: a profile does not tell what it does to converted gradients");
    }
    const std::optional<std::string> why = WhyNotFromTables(*run.start, profile.settings);
    if (!why) return false;
    if (named) {
      throw UsageError(RunLabel(run), "a profile does not answer this: " + *why,
                       "the trace itself");
    }
    left_out += (left_out.empty() ? "" : "; ") + RunLabel(run) + ": " + *why;
    return true;
  });
  if (!left_out.empty()) {
    CurrentCaller().Note("left out, since a profile does not answer it: " + left_out);
  }
}

int RunReplay(ReplayCommandOptions options) {
  if (options.results.summaries) {
    const std::vector<std::string>& paths = options.trace.paths;
    const auto profile = std::ranges::find_if(paths, ProfileReader::IsProfile);
    if (profile != paths.end()) {
      throw UsageError("TRACE", "a profile does not hold the elements that this takes",
                       "the trace itself", Quoted(*profile));
    }
  }
  const std::optional<uint64_t> heat_map_bins = HeatMapBins(options);
  std::vector<NamedScaledFormat> scaled = TakeScaled(options);
  const bool only_scaled = !scaled.empty() && options.request.formats.empty();
  const bool asks_for_policies = !options.request.policies.empty() || !options.config.paths.empty();
  if (!asks_for_policies && !only_scaled && AreCerebrasDumps(options.trace.paths)) {
    options.request.policies = {"cerebras"};
  }
  ConfiguredRuns configured =
      only_scaled ? ConfiguredRuns() : PrepareConfiguredRuns(options.config, options.request);
  std::vector<SimulationRun> runs = std::move(configured.runs);
  // A profile need not hold those of a file.
  std::vector<NamedScaledFormat> of_files;
  for (const std::string& format : configured.scaled) of_files.push_back(ParseScaledFormat(format));
  std::vector<NamedScaledFormat> all = scaled;
  std::ranges::copy(of_files, std::back_inserter(all));
  if (!options.recipe) options.recipe = configured.recipe;
  AskedAccumulation& asked = options.accumulation;
  if (!asked.steps) asked.steps = configured.accumulate_steps;
  RequireRunFigures(options.expectations, runs, all);
  GradientInput input =
      OpenGradients(asked, options.trace, options.device, options.replay, ForwardAlone::kTaken);
  asked.steps = input.accumulate_steps;
  KeepInFloat32(options.float32, input);
  if (!input.has_gradients && !only_scaled) {
    // What is counted of a forward pass alone: no policy has anything to do.
    const ConfigPolicy none = NoScaler();
    SimulationRequest request;
    request.formats = configured.formats;
    request.policies = {none.name};
    request.settings = none.settings;
    request.conversion = options.request.conversion;
    runs = PrepareRuns(request);
  }
  const SourceFacts& facts = input.source.facts;
  RequireAnswers(facts, scaled);
  const auto unanswered = std::ranges::stable_partition(
      of_files, [&](const NamedScaledFormat& one) { return Answers(facts, one.format); });
  scaled.insert(scaled.end(), of_files.begin(), unanswered.begin());
  RequireRunFigures(options.expectations, runs, scaled);
  // Not an interruption after the last step.
  const std::optional<int64_t>& at = options.request.resume_at;
  if (at && (*at <= facts.first_step || *at > facts.last_step)) {
    throw UsageError(
        "--resume-at", "no step is recorded before or after it",
        std::to_string(facts.first_step + 1) + " to " + std::to_string(facts.last_step),
        std::to_string(*at));
  }
  const bool names_policies =
      asks_for_policies && std::ranges::count(options.request.policies, "all") == 0;
  if (facts.profile) FitToProfile(*facts.profile, names_policies, runs);
  ResultFiles files(options.results);
  Advice advice;
  if (!only_scaled) {
    advice = StepThrough(input.source, options, heat_map_bins, configured, files, runs);
  }
  if (!unanswered.empty()) {
    CurrentCaller().Note(unanswered.front().name +
                         " of the configuration is not judged: the profile does not hold it");
  }
  StepScaled(input.source, scaled, only_scaled && files.csv ? &*files.csv : nullptr, advice);
  AddPaths(runs, advice);
  const std::vector<ExpectationOutcome> outcomes = CheckRuns(options.expectations, runs, advice);
  if (files.json) {
    const auto of_call = [&](RowSink& row) { RecordRows(options, configured.configs, row); };
    WriteReplayJson({.trace = RowsOf(facts, options.trace.paths),
                     .options = of_call,
                     .verdict = RowsOf(advice),
                     .expectations = outcomes,
                     .runs = runs},
                    *files.json);
  }
  if (files.summaries) Summarize(options, *files.summaries);
  files.Commit();
  options.report.optimizers = options.replay.optimizers;
  if (options.results.wants_report()) {
    WriteReport(FormatAdviceLines(advice) +
                ReportText(advice, runs, facts, configured.text, options));
  }
  const int missed = ReportOutcomes(outcomes);
  const int refused = ReportRefusals(runs);
  return refused != 0 ? refused : missed;
}

}  // namespace

void AddReplayOptionKeys(std::vector<KeyTable>& tables) {
  AddKeys(
      "options", [](RowSink& row) { RecordRows(ReplayCommandOptions(), {}, row); }, tables);
}

Command ReplayCommand() {
  return MakeCommand<ReplayCommandOptions>(
      RunReplay, "replay",
      "Replay recorded gradients through number formats and loss-scaling policies",
      "Examples:\n"
      "  dlsim replay runs/lm-kjv\n"
      "  dlsim replay runs/lm-kjv --format cb16 --policy cerebras-2.10 --json out.json\n"
      "  dlsim replay runs/lm-kjv --policy torch --policy static --set static.loss_scale=2^15\n"
      "  dlsim replay runs/lm-kjv --config params.yaml --set steps_per_increase=500\n"
      "  dlsim replay runs/lm-kjv --config before.json --config after.json\n"
      "  dlsim replay lm-kjv.profile --policy all\n"
      "  dlsim replay runs/lm-kjv --heat-map --json out.json\n"
      "  dlsim replay runs/lm-kjv --by-layer\n"
      "  dlsim replay runs/lm-kjv --float32 'h.*.mlp.c_proj'\n"
      "  dlsim replay runs/lm-kjv --tensors '*attn*' --csv -\n"
      "  dlsim replay runs/lm-kjv --policy all --format fp16\n"
      "  dlsim replay runs/lm-kjv --format mxfp8 --format fp8-delayed:history=16\n"
      "  dlsim replay runs/lm-kjv --expect 'skipped_steps<=3' --expect 'mean_harm<0.01'\n"
      "  dlsim replay runs/lm-kjv --recipe half --expect 'forward_headroom>1'\n"
      "  dlsim replay runs/lm-kjv --device cuda --json out.json\n"
      "  dlsim replay runs/lm-kjv --policy torch --max-gradient-norm 1 --resume-at 500");
}

}  // namespace dlsim::sim
