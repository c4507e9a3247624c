// SPDX-License-Identifier: Apache-2.0
// dlsim scaler: one policy alone, on a given list of overflow steps.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/format.h"
#include "sim/app/commands.h"
#include "sim/app/config_arguments.h"
#include "sim/app/typed_options.h"
#include "sim/base/json_value.h"
#include "sim/base/number.h"
#include "sim/base/output_file.h"
#include "sim/base/quantity.h"
#include "sim/base/table.h"
#include "sim/base/wrap.h"
#include "sim/config/apply_config.h"
#include "sim/policies/policy_settings.h"
#include "sim/policies/scaler_run.h"
#include "sim/policies/step_lists.h"

namespace dlsim::sim {
namespace {

struct ScalerCommandOptions {
  ConfigArguments config;
  std::string policy, steps, overflow_at, absmax, histogram, format;
  std::string resume_at;
  std::vector<std::string> settings, states;
  std::optional<std::string> json;
  OnFatal on_fatal = OnFatal::kStop;
  bool list = false, quiet = false;
};

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

std::string ListPolicies() {
  const size_t name_width = WidestOf(&ParameterInfo::name);
  const size_t default_width = WidestOf(&ParameterInfo::default_text);
  const size_t columns = OutputColumns();
  std::string text;
  for (const PolicyInfo& policy : Policies()) {
    text += fmt::format("{}{}{}\n", policy.name, policy.aliases.empty() ? "" : ", also ",
                        fmt::join(policy.aliases, ", "));
    text += Wrap(fmt::format("  {}", policy.summary), columns);
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

// The scale's path as one row per change.
std::string PathTable(const ScalerRun& run) {
  std::vector<TableRow> rows = {{"after step", "scale", "steps"}};
  int64_t step = 0;
  for (size_t i = 0; i < run.scale.size() && i < kShownChanges; ++i) {
    rows.push_back(
        {std::to_string(step), ScaleText(run.scale[i].scale), std::to_string(run.scale[i].count)});
    step += run.scale[i].count;
  }
  std::string text = FormatTable(rows);
  if (run.scale.size() > kShownChanges) {
    text += fmt::format("  ... and {} more; --json has all\n", run.scale.size() - kShownChanges);
  }
  return text;
}

std::string FormatRun(const std::string& policy, const ScalerRun& run,
                      const std::vector<std::string>& notes) {
  std::string text = fmt::format("policy: {}\n", policy);
  for (const std::string& note : notes) text += "note: " + note + "\n";
  text += fmt::format("steps: {}, skipped: {}, initial scale: {}\n\n", run.steps_run,
                      run.skipped.size(), ScaleText(run.scale_init.value_or(0)));
  text += PathTable(run);
  for (size_t i = 0; i < run.events.size() && i < kShownEvents; ++i) {
    const ScalerEvent& event = run.events[i];
    text += fmt::format("  step {}: {}: {}\n", event.step, event.type, event.message);
  }
  if (run.event_count > kShownEvents) {
    text += fmt::format("  ... and {}\n", Counted(run.event_count - kShownEvents, "more event"));
  }
  return text;
}

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

int WriteList() {
  WriteOutput("-", ListPolicies());
  return 0;
}

// The same run, interrupted.
struct Twin {
  Kept kept = Kept::kAll;
  ScalerRun run;
  std::optional<int64_t> first_difference;
};

Json JsonTwins(int64_t at_step, const std::vector<Twin>& twins) {
  Json array = Json::array();
  for (const Twin& twin : twins) {
    Json document = ToJson("", twin.run);
    array.push_back(
        {{"at_step", at_step},
         {"kept", NameOf(twin.kept)},
         {"first_difference", twin.first_difference ? Json(*twin.first_difference) : Json()},
         {"scale", document["scale"]},
         {"skipped", document["skipped"]},
         {"events", document["events"]},
         {"state", document["state"]}});
  }
  return array;
}

std::string DescribeTwins(int64_t at_step, const ScalerRun& whole, const std::vector<Twin>& twins) {
  std::vector<TableRow> rows = {
      {"checkpoint keeps", "differs from step", "skipped", "final scale"}};
  const auto add = [&](Kept kept, const std::string& differs, const ScalerRun& run) {
    const double scale = run.scale.empty() ? run.scale_init.value_or(0) : run.scale.back().scale;
    rows.push_back(
        {std::string(NameOf(kept)), differs, std::to_string(run.skipped.size()), ScaleText(scale)});
  };
  add(Kept::kAll, "never", whole);
  for (const Twin& twin : twins) {
    add(twin.kept, twin.first_difference ? std::to_string(*twin.first_difference) : "never",
        twin.run);
  }
  return fmt::format("\n  interrupted before step {} and resumed:\n", at_step) + FormatTable(rows);
}

int RunScalerCommand(ScalerCommandOptions options) {
  if (options.list) return WriteList();
  const std::optional<TrainingConfig> config = ReadConfig(options.config);
  if (config) ApplyToScaler(*config, options);
  if (options.policy.empty() || options.steps.empty()) {
    throw UsageError("", "--policy and --steps are needed (or --list)");
  }
  const PolicyInfo& policy = FindPolicy(options.policy);
  const int64_t steps = ParseInteger(options.steps, "--steps");
  if (steps < 0) throw UsageError("--steps", "negative number", "0 or more", Quoted(options.steps));
  const std::vector<int64_t> overflow_steps = ParseOverflowList(options.overflow_at);
  const StepSignals signals = {.absmax = ParseMagnitudeList(options.absmax),
                               .histogram = ParseHistogramList(options.histogram)};
  const std::string format = options.format.empty() ? "" : ParseFormat(options.format).name;
  const std::string name(policy.name);
  const int64_t resume_at =
      options.resume_at.empty() ? -1 : ParseInteger(options.resume_at, "--resume-at");
  ScalerRun run;
  std::vector<Twin> twins;
  std::vector<std::string> notes;
  int exit_code = 0;
  try {
    ConfiguredScaler configured = policy.make(ResolveParameters(policy, options.settings), format);
    notes = configured.notes;
    if (!overflow_steps.empty() && overflow_steps.back() >= steps) {
      notes.push_back("overflow steps from " + std::to_string(steps) + " on have no effect");
    }
    CheckSignals(policy.name, configured.scaler, steps, signals, notes);
    RestoreState(options.states, name, configured);
    if (!options.resume_at.empty() && (resume_at < 0 || resume_at >= steps)) {
      throw UsageError("--resume-at", "not one of the steps", "0 to " + std::to_string(steps - 1),
                       Quoted(options.resume_at));
    }
    run = RunScaler(configured, steps, overflow_steps, options.on_fatal, signals);
    for (const Kept kept : {Kept::kScale, Kept::kNothing}) {
      if (resume_at < 0) continue;
      ScalerRun twin = RunScaler(configured, steps, overflow_steps, options.on_fatal, signals,
                                 Resume{resume_at, kept});
      const std::optional<int64_t> difference = FirstDifference(run, twin);
      twins.push_back({kept, std::move(twin), difference});
    }
  } catch (const PolicyRefusal& refusal) {
    run = RefusedRun(refusal);
    std::fprintf(stderr, "dlsim scaler: policy %s: %s: %s\n", name.c_str(), refusal.type.c_str(),
                 refusal.message.c_str());
    exit_code = static_cast<int>(ErrorKind::kUsage);
  }
  if (options.json) {
    OutputFile out(*options.json);
    Json document = ToJson(name, run);
    if (!twins.empty()) document["resume"] = JsonTwins(resume_at, twins);
    if (config) document["config"] = JsonConfig(options.config.path(), *config);
    out.Write(DumpJson(document) + "\n");
    out.Commit();
  } else if (exit_code == 0 && !options.quiet) {
    WriteReport((config ? DescribeConfig(options.config.path(), *config) : "") +
                FormatRun(name, run, notes) +
                (twins.empty() ? "" : DescribeTwins(resume_at, run, twins)));
  }
  return exit_code;
}

}  // namespace

void AddScalerCommand(CLI::App& app, Action& action) {
  const auto options = std::make_shared<ScalerCommandOptions>();
  CLI::App* command =
      app.add_subcommand("scaler", "Run one loss-scaling policy on a list of overflow steps");
  AddConfigArguments(*command, options->config);
  command->add_option("--policy", options->policy, "Name or alias of the policy; see --list")
      ->option_text("NAME");
  command->add_option("--set", options->settings, "Parameter of the policy, repeatable; see --list")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--state", options->states,
                   "Start from a checkpoint: a field of the policy's state, or scale; repeatable")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--resume-at", options->resume_at,
                   "Also run interrupted before this step, resumed from a checkpoint with the loss "
                   "scale only and from none")
      ->option_text("STEP");
  command->add_option("--steps", options->steps, "Number of steps to run; needed unless --list")
      ->option_text("N");
  command
      ->add_option("--overflow-at", options->overflow_at,
                   "Steps that overflow, from 0, separated by commas or blanks; @FILE reads a file")
      ->option_text("LIST");
  command
      ->add_option("--absmax", options->absmax,
                   "Largest unscaled magnitude of each step, for policies that look at it "
                   "(openseq2seq-logmax); inf overflows; @FILE reads a file")
      ->option_text("LIST");
  command
      ->add_option("--histogram", options->histogram,
                   "Counts of scaled gradients below and above the edge in each step, BELOW:ABOVE, "
                   "for policies that look at them (popart); @FILE reads a file")
      ->option_text("LIST");
  command
      ->add_option(
          "--format", options->format,
          "Number format, for defaults that depend on it (cerebras-2.10: cb16); default: as "
          "for fp16")
      ->option_text("F");
  command->add_option("--json", options->json, "Write the result as JSON; - is standard output")
      ->option_text("FILE");
  AddChoice<OnFatal>(*command, "--on-fatal", options->on_fatal, "RULE",
                     "Where the original would raise a fatal error: stop (default) or continue");
  command->add_flag("--list", options->list, "List all policies and their parameters");
  command->add_flag("--quiet", options->quiet, "No report; errors only");
  command->footer(
      "Examples:\n"
      "  dlsim scaler --list\n"
      "  dlsim scaler --policy torch --steps 5000 --overflow-at 0,1,2000\n"
      "  dlsim scaler --policy openseq2seq-logmax --steps 4 --absmax 3,2.5,inf,2\n"
      "  dlsim scaler --config ds_config.json --steps 5000 --overflow-at 0,1,2000\n"
      "  dlsim scaler --policy cerebras-2.10 --set init_scale=2^10 --steps 100 --json -");
  command->callback(
      [options, &action] { action = [options] { return RunScalerCommand(*options); }; });
}

}  // namespace dlsim::sim
