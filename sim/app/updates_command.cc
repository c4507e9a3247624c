// SPDX-License-Identifier: Apache-2.0
// dlsim updates: the updates of a probe, replayed with weights and optimizer states in other
// formats.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/probe.h"
#include "sim/app/commands.h"
#include "sim/app/config_arguments.h"
#include "sim/app/expect_option.h"
#include "sim/base/output_file.h"
#include "sim/base/progress.h"
#include "sim/base/quantity.h"
#include "sim/base/wrap.h"
#include "sim/updates/update_output.h"

namespace dlsim::sim {
namespace {

struct UpdatesOptions {
  std::string probe;
  UpdateRunRequest request;
  ConfigArguments config;
  uint64_t seed = 0, top = 5;
  std::vector<Expectation> expectations;
  ResultPaths results;
  std::optional<std::string> elements;

  void Visit(OptionRows& option);
};

Json JsonOverrides(const SettingOverrides& overrides) {
  Json object = Json::object();
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) object[name] = JsonNumber(*value);
  };
  if (overrides.optimizer) object["optimizer"] = NameOf(*overrides.optimizer);
  add("lr", overrides.lr);
  add("beta1", overrides.beta1);
  add("beta2", overrides.beta2);
  add("eps", overrides.eps);
  add("weight_decay", overrides.weight_decay);
  add("momentum", overrides.momentum);
  if (overrides.arithmetic) object["arithmetic"] = NameOf(*overrides.arithmetic);
  return object;
}

void RequireIn(const char* option, const std::optional<double>& value, bool below_one) {
  if (!value || (*value >= 0 && (!below_one || *value < 1))) return;
  throw UsageError(option, "out of range", below_one ? "0 or more and below 1" : "0 or more",
                   NumberText(*value));
}

// The ranges of PyTorch.
void RequireRanges(const SettingOverrides& overrides) {
  RequireIn("--lr", overrides.lr, false);
  RequireIn("--beta1", overrides.beta1, true);
  RequireIn("--beta2", overrides.beta2, true);
  RequireIn("--eps", overrides.eps, false);
  RequireIn("--weight-decay", overrides.weight_decay, false);
  RequireIn("--momentum", overrides.momentum, false);
}

// Formats that a configuration decides and no option does.
void Configure(const UpdateFormats& formats, UpdateRunRequest& request) {
  const auto fill = [](std::optional<std::string>& asked, const std::optional<std::string>& by) {
    if (!asked) asked = by;
  };
  // Master weights in 16 bits are what the optimizer updates, and there are no others behind them.
  const bool narrow = formats.master && formats.master != "fp32" && formats.master != "none";
  fill(request.weights, narrow ? formats.master : formats.weights);
  fill(request.master, narrow ? "none" : formats.master);
  if (!request.states) {
    fill(request.first, formats.first);
    fill(request.second, formats.second);
  }
  // Gradients in fp16 are multiplied by the loss scale, and read in float32 without it.
  if (formats.gradients != "fp16") fill(request.gradients, formats.gradients);
}

// Says what a run takes where neither the configuration nor an option decides.
std::string AssumptionsOf(const UpdateRunRequest& request, const UpdateRun& run,
                          const OptimizerSettings& trained) {
  if (!request.asks_for_formats()) {
    return "note: the configuration says no format of weights or states: several recipes are tried";
  }
  std::string text;
  const auto add = [&](const std::string& assumed) {
    text += (text.empty() ? "" : ", ") + assumed;
  };
  if (!request.weights) add("weights in " + StoredName(run.weights));
  if (!request.master && run.weights) {
    add(std::string(run.master ? "a" : "no") + " float32 copy of the weights");
  }
  if (!request.states && !request.first && trained.has_first_moment()) {
    add("the first moment in " + StoredName(run.first));
  }
  if (!request.states && !request.second && trained.has_second_moment()) {
    add("the second moment in " + StoredName(run.second));
  }
  if (text.empty()) return text;
  return "note: the configuration leaves this open, and the replay assumes: " + text;
}

ProbeReader OpenProbe(const std::string& path) {
  ProbeReader probe = ProbeReader::Open(path);
  if (probe.step_count() == 0) {
    throw InputError(Printable(path), "no update was recorded", "a training with steps");
  }
  return probe;
}

void AddLimit(const std::string& limit, UpdateStudy& study) {
  if (limit.empty() || std::ranges::count(study.limits, limit) > 0) return;
  study.limits.push_back(limit);
}

UpdateStudy Described(const std::string& path, const ProbeReader& probe,
                      const SettingOverrides& overrides) {
  UpdateStudy study;
  study.path = path;
  study.head = probe.head();
  study.steps = probe.step_count();
  study.cut_bytes = probe.cut_bytes();
  const ProbeStep first = probe.ReadStep(0);
  study.first_step = first.step;
  study.last_step = probe.ReadStep(probe.step_count() - 1).step;
  for (const ProbeGroup& group : first.groups) {
    const std::string name =
        overrides.optimizer ? std::string(NameOf(*overrides.optimizer)) : group.optimizer;
    if (std::ranges::find(study.optimizers, name) == study.optimizers.end()) {
      study.optimizers.push_back(name);
    }
  }
  if (first.groups.empty()) throw InputError(Printable(path), "no group of parameters");
  study.trained = SettingsOf(first.groups.front(), overrides, Printable(path));
  for (const ProbeGroup& group : first.groups) {
    const OptimizerSettings settings = SettingsOf(group, overrides, Printable(path));
    study.trained.is_fused = study.trained.is_fused && settings.is_fused;
    AddLimit(LimitOf(settings, study.head), study);
  }
  return study;
}

Json DescribeOptions(const UpdatesOptions& options, const std::optional<TrainingConfig>& config) {
  Json object = {{"seed", options.seed}, {"settings", JsonOverrides(options.request.overrides)}};
  object["config"] = config ? JsonConfig(options.config.path(), *config) : Json();
  return object;
}

UpdateReplay Replayed(const ProbeReader& probe, const UpdatesOptions& options,
                      const std::vector<UpdateRun>& runs, UpdateStudy& study) {
  const std::optional<ProbeValues> start = probe.ReadValues(0);
  if (!start) {
    throw InputError(Printable(options.probe), "no values before the first update",
                     "a probe that begins with the training");
  }
  UpdateReplay replay(probe.head(), *start, runs, options.seed, Printable(options.probe));
  Progress progress("updates", probe.step_count(),
                    options.results.quiet ? ProgressMode::kQuiet : ProgressMode::kAuto,
                    ProgressUnit::kCount);
  const bool as_trained = options.request.overrides == SettingOverrides();
  for (size_t i = 0; i < probe.step_count(); ++i) {
    replay.Take(probe.ReadStep(i));
    const std::optional<ProbeValues> recorded = probe.ReadValues(i + 1);
    if (recorded && as_trained) {
      study.distance = replay.DistanceFrom(*recorded);
      study.compared = i + 1;
    }
    if (recorded) replay.Renew(*recorded);
    progress.Update(i + 1);
  }
  study.runs = replay.Outcomes();
  return replay;
}

void RequireRuns(const UpdatesOptions& options, const std::vector<UpdateRun>& runs) {
  std::vector<std::string> names;
  for (const UpdateRun& run : runs) names.push_back(run.name);
  for (const Expectation& expectation : options.expectations) {
    RequireSubject(expectation, names, "no such run");
    RequireFigure(expectation, FigureNames(JsonFigures(RunOutcome())), kExpectOption);
  }
}

// What may fix the run that was asked for has to be named.
std::vector<ExpectationOutcome> Check(const UpdatesOptions& options, const UpdateStudy& study) {
  std::vector<NamedFigures> runs;
  for (size_t r = 0; r < study.runs.size(); ++r) {
    runs.push_back({study.runs[r].run.name, JsonFigures(study.runs[r]), r < study.asked});
  }
  return CheckExpectations(options.expectations, runs);
}

int RunUpdates(UpdatesOptions options) {
  RequireRanges(options.request.overrides);
  const std::optional<TrainingConfig> config = ReadConfig(options.config);
  if (config) Configure(config->updates.formats, options.request);
  const ProbeReader probe = OpenProbe(options.probe);
  UpdateStudy study = Described(options.probe, probe, options.request.overrides);
  const std::vector<UpdateRun> runs = MakeUpdateRuns(options.request, study.trained);
  if (config) AddLimit(AssumptionsOf(options.request, runs.front(), study.trained), study);
  RequireRuns(options, runs);
  ResultFiles files(options.results);
  std::optional<OutputFile> elements;
  if (options.elements) elements.emplace(*options.elements);
  const UpdateReplay replay = Replayed(probe, options, runs, study);
  const std::vector<ExpectationOutcome> outcomes = Check(options, study);
  if (files.json) {
    WriteUpdatesJson(study, DescribeOptions(options, config),
                     outcomes.empty() ? Json() : JsonOutcomes(outcomes), *files.json);
  }
  if (files.csv) WriteUpdatesCsv(study, *files.csv);
  if (elements) WriteElementsCsv(study.head, replay, *elements);
  files.Commit();
  if (elements) elements->Commit();
  if (options.results.wants_report() && options.elements != "-") {
    WriteReport(FormatUpdates(study, options.top));
  }
  return ReportOutcomes(outcomes);
}

void VisitFormats(OptionRows& option, UpdateRunRequest& request) {
  option("--weights", request.weights, "F",
         "Format of the weights, a name or fp32 (default: fp32; without any format option, "
         "several common recipes are tried)",
         FormatNames());
  option("--states", request.states, "F",
         "Format of both moments (default: that of the weights which the optimizer updates)",
         FormatNames());
  option("--first", request.first, "F", "Format of the first moment, or of SGD's momentum",
         FormatNames());
  option("--second", request.second, "F", "Format of the second moment", FormatNames());
  option("--gradients", request.gradients, "F",
         "Format in which the optimizer reads gradients (default: that of the weights which it "
         "updates)",
         FormatNames());
  option("--rounding", request.rounding, "MODE", "How weights are rounded: rne (default) or sr");
  option("--compensation", request.compensation, "KIND",
         "none (default), or kahan: the rounding error of a weight is added to its next update");
  option("--master", request.master, "F",
         "fp32: the optimizer updates float32 weights, and --weights are copies of them; or none "
         "(default)",
         {"fp32", "none"});
  option(
      "--kernel", request.kernel, "KIND",
      "foreach: each operation of the optimizer is rounded, as in PyTorch; or fused: only what is "
      "stored is rounded (default: as recorded for one format, else fused)");
}

void VisitSettings(OptionRows& option, SettingOverrides& overrides) {
  option("--optimizer", overrides.optimizer, "NAME",
         "Replay this optimizer instead of the recorded one");
  option("--lr", overrides.lr, "X", "Learning rate, instead of the recorded rates");
  option("--beta1", overrides.beta1, "X", "Decay of the first moment");
  option("--beta2", overrides.beta2, "X", "Decay of the second moment");
  option("--eps", overrides.eps, "X",
         "Term that Adam adds to the square root of the second moment");
  option("--weight-decay", overrides.weight_decay, "X", "Weight decay");
  option("--momentum", overrides.momentum, "X", "Momentum of SGD");
  option("--arithmetic", overrides.arithmetic, "DEVICE",
         "cpu or cuda: follow PyTorch's kernels for this device, which round in different places "
         "(default: where the probe was recorded)");
}

void UpdatesOptions::Visit(OptionRows& option) {
  option.Argument("PROBE", probe, "A probe (.dlprobe), written by Recorder(..., probe=4096)")
      ->required();
  option.Group(kTryGroup);
  VisitFormats(option, request);
  option("--seed", seed, "Seed of stochastic rounding");
  config.Visit(option, ConfigFiles::kOne, "formats of weights, moments and gradients",
               "the options for formats");
  option.Group("Optimizer (also used for the float32 reference)");
  VisitSettings(option, request.overrides);
  option.Threads();
  option.Group(kOutputGroup);
  option.Output("--json", results.json, "Write the full result as JSON");
  option.Output("--csv", results.csv, "Write one row per run and tensor");
  option.Output("--elements", elements,
                "Write one row per run and followed element, with its final value");
  option("--top", top, "Number of tensors in the list of the report");
  option("--quiet", results.quiet, "No report and no progress; errors only");
  VisitExpect(option, expectations, "drift<0.2");
}

}  // namespace

void AddUpdatesCommand(CLI::App& app, Action& action) {
  AddCommand<UpdatesOptions>(
      app, action, RunUpdates, "updates",
      "Replay the optimizer updates of a probe with weights and states in other formats",
      "Examples:\n"
      "  dlsim updates runs/probe.dlprobe\n"
      "  dlsim updates runs/probe.dlprobe --weights bf16 --states fp32\n"
      "  dlsim updates runs/probe.dlprobe --weights bf16 --rounding sr --seed 7\n"
      "  dlsim updates runs/probe.dlprobe --weights bf16 --master fp32 --states bf16 --beta2 0.99");
}

}  // namespace dlsim::sim
