// SPDX-License-Identifier: Apache-2.0
// dlsim scaler: one policy alone, on a given list of overflow steps.
#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/format.h"
#include "dlsim/sim/policies.h"
#include "sim/app/commands.h"
#include "sim/app/scaler_run.h"
#include "sim/app/shared_options.h"
#include "sim/app/training_config.h"
#include "sim/base/caller.h"
#include "sim/base/files.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

constexpr size_t kShownChanges = 20;
constexpr size_t kShownEvents = 10;

// One width for all policies, so that the columns line up across the list.
size_t WidestOf(std::string_view ParameterInfo::*column) {
  size_t width = 0;
  for (const PolicyInfo& policy : Policies()) {
    for (const ParameterInfo& parameter : policy.parameters) {
      width = std::max(width, (parameter.*column).size());
    }
  }
  return width;
}

// The words of `dlsim scaler --list` for it.
std::string_view TextOf(Kept content) {
  switch (content) {
    case Kept::kAll:
      return "its whole state";
    case Kept::kScale:
      return "the scale only";
    case Kept::kNothing:
      return "nothing";
  }
  return "";
}

std::string ListPolicies() {
  const size_t name_width = WidestOf(&ParameterInfo::name);
  const size_t default_width = WidestOf(&ParameterInfo::default_text);
  const size_t columns = OutputColumns();
  std::string text;
  for (const PolicyInfo& policy : Policies()) {
    text += fmt::format("{}{}{}\n", policy.name, policy.aliases.empty() ? "" : ", also ",
                        fmt::join(policy.aliases, ", "));
    text += Wrap(fmt::format("  {}", policy.summary), columns);
    text += Wrap(fmt::format("  finite test: {}; clipping: {}; a checkpoint keeps {}",
                             NameOf(policy.rules.finite_test), NameOf(policy.rules.clip_rule),
                             TextOf(policy.checkpoint)),
                 columns);
    for (const ParameterInfo& parameter : policy.parameters) {
      const std::string head = fmt::format("    {:<{}}  {:<{}}", parameter.name, name_width,
                                           parameter.default_text, default_width);
      const bool fits = head.size() + 2 + parameter.help.size() <= columns;
      text += fits ? fmt::format("{}  {}\n", head, parameter.help)
                   : fmt::format("    {}  {}\n", parameter.name, parameter.default_text) +
                         Wrap(fmt::format("        {}", parameter.help), columns);
    }
  }
  return text;
}

std::string FormatRun(const std::string& policy, const ScalerRun& run,
                      const std::vector<std::string>& notes) {
  std::string text = fmt::format("policy: {}\n", policy);
  for (const std::string& note : notes) text += "note: " + note + "\n";
  text += fmt::format("steps: {}, skipped: {}, initial scale: {}\n\n", run.steps_run,
                      run.skipped.size(), ScaleText(run.scale_init.value_or(0)));
  std::vector<TableRow> rows = {{"after step", "scale", "steps"}};
  int64_t step = 0;
  for (size_t i = 0; i < run.scale.size() && i < kShownChanges; ++i) {
    rows.push_back(
        {std::to_string(step), ScaleText(run.scale[i].scale), std::to_string(run.scale[i].count)});
    step += run.scale[i].count;
  }
  text += FormatTable(rows);
  if (run.scale.size() > kShownChanges) {
    text += fmt::format("  ... and {} more; --json has all\n", run.scale.size() - kShownChanges);
  }
  for (size_t i = 0; i < run.events.size() && i < kShownEvents; ++i) {
    const ScalerEvent& event = run.events[i];
    text += fmt::format("  step {}: {}: {}\n", event.step, event.type, event.message);
  }
  if (run.event_count > kShownEvents) {
    text += fmt::format("  ... and {}\n", Counted(run.event_count - kShownEvents, "more event"));
  }
  return text;
}

// Of runs that were interrupted before `at_step` and resumed.
std::string DescribeTwins(int64_t at_step, const ScalerRun& whole,
                          const std::vector<ScalerTwin>& twins) {
  std::vector<TableRow> rows = {
      {"checkpoint keeps", "differs from step", "skipped", "final scale"}};
  const auto add = [&](Kept kept, const std::string& differs, const ScalerRun& run) {
    const double scale = run.scale.empty() ? run.scale_init.value_or(0) : run.scale.back().scale;
    rows.push_back(
        {std::string(NameOf(kept)), differs, std::to_string(run.skipped.size()), ScaleText(scale)});
  };
  add(Kept::kAll, "never", whole);
  for (const ScalerTwin& twin : twins) {
    add(twin.kept, twin.first_difference ? std::to_string(*twin.first_difference) : "never",
        twin.run);
  }
  return fmt::format("\n  if interrupted before step {} and resumed:\n", at_step) +
         FormatTable(rows);
}

// A list that `parse` reads at once.
template <class List>
void VisitList(OptionRows& option, const char* name, List& list, List (*parse)(std::string_view),
               const std::string& help) {
  const auto read = [&list, parse](const std::string& text) { list = parse(text); };
  option.Read(name, read, "LIST", help + "; @FILE reads a file");
}

struct ScalerCommandOptions {
  ConfigArguments config;
  std::string policy, format;
  std::optional<int64_t> steps, resume_at;
  std::vector<int64_t> overflow_steps;
  StepSignals signals;
  std::vector<std::string> settings, states;
  ResultPaths results;
  OnFatal on_fatal = OnFatal::kStop;
  bool list = false;

  void Visit(OptionRows& option) {
    config.Visit(option);
    option("--policy", policy, "NAME", "Name or alias of the policy; see --list", PolicyNames());
    option("--set", settings, "KEY=VALUE", "Parameter of the policy, repeatable; see --list",
           ParameterNames());
    option.Group(kEmulationGroup);
    option("--state", states, "KEY=VALUE",
           "Start from a checkpoint: KEY is a field of the policy's state, or scale; repeatable");
    option("--resume-at", resume_at, "STEP",
           "Also run as if interrupted before this step and resumed: from a checkpoint that holds "
           "only the loss scale, and without one");
    option.Group(kInputGroup);
    option("--steps", steps, "N", "Number of steps to run; required without --list");
    VisitList(option, "--overflow-at", overflow_steps, ParseOverflowList,
              "Steps that overflow, counted from 0, separated by commas or blanks");
    VisitList(option, "--absmax", signals.absmax, ParseMagnitudeList,
              "Largest unscaled magnitude of each step, for policies that use it "
              "(openseq2seq-logmax); inf is an overflow");
    VisitList(
        option, "--histogram", signals.histogram, ParseHistogramList,
        "Number of scaled gradients below and above the edge in each step, as BELOW:ABOVE, for "
        "policies that use them (popart)");
    option.Group(kTryGroup);
    option("--format", format, "F",
           "Number format, for defaults that depend on it (cerebras-2.10: cb16); default: as for "
           "fp16",
           FormatNames());
    option.Group(kEmulationGroup);
    VisitOnFatal(option, on_fatal);
    option.Group(kOutputGroup);
    option.Output("--json", results.json, "Write the result as JSON");
    option("--list", list, "List all policies and their parameters");
    option("--quiet", results.quiet, "No report; errors only");
  }
};

// Adds what the configuration says: one policy, its settings and its format.
void ApplyToScaler(const TrainingConfig& config, ScalerCommandOptions& options) {
  if (options.policy.empty() && config.policies.size() > 1) {
    throw UsageError("--config", "several policies", "--policy to name one of them");
  }
  if (options.policy.empty() && !config.policies.empty()) options.policy = config.policies[0].name;
  if (options.format.empty() && config.formats.size() == 1) options.format = config.formats[0];
  if (options.policy.empty()) return;
  const PolicyInfo& policy = FindPolicy(options.policy);
  for (const ConfigPolicy& own : config.policies) {
    if (own.name != policy.name) continue;
    const std::vector<std::string> settings = SettingsOf(own, options.settings);
    options.settings.insert(options.settings.begin(), settings.begin(), settings.end());
  }
}

// Refuses options that do not fit each other.
void CheckOptions(const ScalerCommandOptions& options) {
  if (options.policy.empty() || !options.steps) {
    throw UsageError("", "--policy and --steps are needed (or --list)");
  }
  const auto quoted = [](int64_t number) { return Quoted(std::to_string(number)); };
  if (*options.steps < 0) {
    throw UsageError("--steps", "negative number", "0 or more", quoted(*options.steps));
  }
  if (!options.resume_at || (*options.resume_at >= 0 && *options.resume_at < *options.steps))
    return;
  throw UsageError("--resume-at", "not one of the steps",
                   "0 to " + std::to_string(*options.steps - 1), quoted(*options.resume_at));
}

struct ScalerResult {
  ScalerRun run;
  std::vector<ScalerTwin> twins;  // where a run is resumed
  std::vector<std::string> notes;
};

// Throws PolicyRefusal where the original refuses its parameters.
ScalerResult RunAll(const PolicyInfo& policy, const ScalerCommandOptions& options) {
  const int64_t steps = *options.steps;
  const std::string format = options.format.empty() ? "" : ParseFormat(options.format).name;
  ConfiguredScaler configured = policy.make(ResolveParameters(policy, options.settings), format);
  ScalerResult result = {.run = {}, .twins = {}, .notes = configured.notes};
  if (!options.overflow_steps.empty() && options.overflow_steps.back() >= steps) {
    result.notes.push_back("overflow steps from " + std::to_string(steps) + " on have no effect");
  }
  CheckSignals(policy.name, configured.scaler, steps, options.signals, result.notes);
  RestoreState(options.states, std::string(policy.name), configured);
  result.run =
      RunScaler(configured, steps, options.overflow_steps, options.on_fatal, options.signals);
  if (!options.resume_at) return result;
  for (const Kept kept : {Kept::kScale, Kept::kNothing}) {
    ScalerRun twin = RunScaler(configured, steps, options.overflow_steps, options.on_fatal,
                               options.signals, Resume{*options.resume_at, kept});
    const std::optional<int64_t> difference = FirstDifference(result.run, twin);
    result.twins.push_back({*options.resume_at, kept, std::move(twin), difference});
  }
  return result;
}

int RunScalerCommand(ScalerCommandOptions options) {
  if (options.list) {
    WriteOutput("-", ListPolicies());
    return 0;
  }
  const std::optional<TrainingConfig> config = ReadConfig(options.config);
  if (config) ApplyToScaler(*config, options);
  CheckOptions(options);
  const PolicyInfo& policy = FindPolicy(options.policy);
  const std::string name(policy.name);
  ScalerResult result;
  int exit_code = 0;
  try {
    result = RunAll(policy, options);
  } catch (const PolicyRefusal& refusal) {
    result.run = RefusedRun(refusal);
    CurrentCaller().Say("policy " + name + ": " + refusal.type + ": " + refusal.message);
    exit_code = static_cast<int>(ErrorKind::kUsage);
  }
  const auto& [run, twins, notes] = result;
  ResultFiles files(options.results);
  if (files.json) {
    WriteJson(RowsOf(name, run, twins, config ? RowsOf(*config) : TellRows()), *files.json);
  }
  files.Commit();
  if (exit_code == 0 && options.results.wants_report()) {
    WriteReport((config ? DescribeConfig(*config) : "") + FormatRun(name, run, notes) +
                (twins.empty() ? "" : DescribeTwins(*options.resume_at, run, twins)));
  }
  return exit_code;
}

}  // namespace

Command ScalerCommand() {
  return MakeCommand<ScalerCommandOptions>(
      RunScalerCommand, "scaler", "Run one loss-scaling policy on a list of overflow steps",
      "Examples:\n"
      "  dlsim scaler --list\n"
      "  dlsim scaler --policy torch --steps 5000 --overflow-at 0,1,2000\n"
      "  dlsim scaler --policy openseq2seq-logmax --steps 4 --absmax 3,2.5,inf,2\n"
      "  dlsim scaler --config ds_config.json --steps 5000 --overflow-at 0,1,2000\n"
      "  dlsim scaler --policy cerebras-2.10 --set init_scale=2^10 --steps 100 --json -");
}

}  // namespace dlsim::sim
