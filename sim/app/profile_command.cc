// SPDX-License-Identifier: Apache-2.0
// dlsim profile: the tables of a trace's steps, in a folder that answers in its place.
#include <fmt/format.h>
#include <cstddef>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/profile.h"
#include "dlsim/sim/step.h"
#include "sim/app/commands.h"
#include "sim/app/shared_options.h"
#include "sim/base/caller.h"
#include "sim/base/files.h"
#include "sim/base/parse.h"
#include "sim/base/quantity.h"
#include "sim/base/rows.h"
#include "sim/base/shared_rows.h"
#include "sim/base/table.h"
#include "sim/replay/step_sources.h"

namespace dlsim::sim {

std::vector<float> MantissasOf(const std::vector<std::string>& scales, const std::string& place) {
  std::vector<float> mantissas;
  for (const std::string& text : scales) {
    const auto scale = static_cast<float>(ParseNumber(text, place));
    if (!std::isnormal(scale) || scale < 0) {
      throw UsageError(place, "not a loss scale", "a positive normal float32 number", Quoted(text));
    }
    if (MantissaOf(scale) != 1) mantissas.push_back(MantissaOf(scale));
  }
  std::ranges::sort(mantissas);
  const auto repeated = std::ranges::unique(mantissas);
  mantissas.erase(repeated.begin(), repeated.end());
  return mantissas;
}

std::vector<NamedScaledFormat> ScaledFormatsOf(const std::vector<std::string>& names,
                                               const std::string& place) {
  std::vector<NamedScaledFormat> formats;
  for (const std::string& name : names) {
    NamedScaledFormat format = ParseScaledFormat(name, place);
    if (format.format.delayed) {
      throw UsageError(place, "scales that follow from earlier steps need the trace",
                       "a format without delayed scaling", Quoted(name));
    }
    if (std::ranges::count(formats, format.name, &NamedScaledFormat::name) > 0) continue;
    formats.push_back(std::move(format));
  }
  std::ranges::sort(formats, {}, &NamedScaledFormat::name);
  return formats;
}

namespace {

// Size of the files that the steps were made from.
uint64_t RecordedBytes(const ProfileReader& profile) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < profile.step_count(); ++i) {
    for (const RecordedFile& file : profile.LoadHead(i).files) bytes += file.bytes;
  }
  return bytes;
}

// One line: steps, sizes, and what the profile answers.
std::string FormatSummary(const ProfileReader& profile) {
  const size_t count = profile.step_count();
  const std::string steps = count == 0 ? "no steps"
                            : count == 1
                                ? fmt::format("1 step ({})", profile.step_number(0))
                                : fmt::format("{} steps ({} to {})", count, profile.step_number(0),
                                              profile.step_number(count - 1));
  const uint64_t trace = RecordedBytes(profile), own = profile.file_bytes();
  const std::string ratio =
      trace == 0 ? ""
                 : fmt::format(" of a trace of {} ({})", Bytes(trace),
                               Percent(static_cast<double>(own) / static_cast<double>(trace)));
  std::string also;
  for (const float mantissa : profile.settings().mantissas) {
    also += fmt::format(", loss scales of {} * 2^k", mantissa);
  }
  for (const NamedScaledFormat& format : profile.settings().scaled) also += ", " + format.name;
  return fmt::format("{}: {}, {}{}{}{}\n", Printable(profile.folder()), steps, Bytes(own), ratio,
                     also.empty() ? "" : "; also for", also.substr(also.empty() ? 0 : 1));
}

// What is said of a profile.
struct ProfileRecord {
  std::string folder;
  std::vector<int64_t> steps;
  uint64_t trace_bytes = 0, profile_bytes = 0;
  ProfileSettings settings;
};

inline void Rows(const ProfileRecord& of, RowSink& row) {
  const bool none = of.steps.empty();
  row("schema", "dlsim.profile-report/1");
  row("profile", of.folder, "the folder");
  row("steps", of.steps.size(), "that it has");
  row("first_step", none ? nullptr : &of.steps.front(), "recorded number");
  row("last_step", none ? nullptr : &of.steps.back(), "recorded number");
  row("trace_bytes", of.trace_bytes, "size of the files that it was made from");
  row("profile_bytes", of.profile_bytes, "its size");
  row("tensors", of.settings.tensors, "the pattern of those that it has");
  row("accumulate", of.settings.accumulation, "rule for micro-steps");
  row("grad_accum_steps", of.settings.accumulate_steps, "recorded steps that make one");
  ProfileNames(of.settings, row);
}

// Numbers of steps, both included.
struct StepRange {
  int64_t first = 0, last = std::numeric_limits<int64_t>::max();
};

// Reads "A:B", of which either may be left out.
StepRange ParseSteps(const std::string& text) {
  StepRange range;
  const size_t colon = text.find(':');
  if (colon == text.npos) {
    throw UsageError("--steps", "not a range of steps", "A:B, A: or :B", Quoted(text));
  }
  if (colon > 0) range.first = ParseInteger(text.substr(0, colon), "--steps");
  if (colon + 1 < text.size()) range.last = ParseInteger(text.substr(colon + 1), "--steps");
  if (range.first > range.last) {
    throw UsageError("--steps", "ends before it begins", "A:B with A at most B", Quoted(text));
  }
  return range;
}

struct ProfileCommandOptions {
  TraceArguments trace;
  std::string output;
  std::vector<std::string> scaled, scales;
  StepRange steps;
  ResultPaths results;
  uint64_t accumulate_steps = 1;
  StepOptions step;
  DeviceChoice device;
  bool restart = false;

  void Visit(OptionRows& option) {
    trace.Visit(option, TraceInput::kTrace);
    option.Read(
        "--steps", [this](const std::string& text) { steps = ParseSteps(text); }, "A:B",
        "Only the steps with numbers from A to B, both included; either may be left out");
    option.Group("What the profile answers");
    option(
        "--scaled-format", scaled, "F",
        "Also what each tensor loses in a format with scales of its own, such as mxfp8; repeatable",
        ScaledFormatNames());
    option(
        "--scale", scales, "S",
        "Also loss scales of S times a power of two, such as 2e15; repeatable. Powers of two need "
        "no option");
    option.Group(kEmulationGroup);
    option("--accumulate", step.accumulation, "RULE", kAccumulateHelp);
    option("--grad-accum-steps", accumulate_steps,
           "Average N recorded steps into one optimizer step");
    VisitComputation(option, device, &step.memory_bytes);
    option.Group(kOutputGroup);
    OptionRow& folder =
        option("-o,--output", output, "FOLDER",
               "The profile to write, or to continue: steps that are there are skipped");
    folder.required = folder.is_output = true;
    option("--restart", restart, "Remove the steps of a profile that is there, and start over");
    option.Output("--json", results.json, "Write what the profile holds as JSON");
    option("--quiet", results.quiet, "No summary, notes or progress; errors only");
  }
};

// An effective step of the trace.
struct RecordedStep {
  size_t index = 0;  // of the source
  int64_t number = 0;
  std::vector<std::string> paths;
};

// Returns the steps in the range, in order.
std::vector<RecordedStep> StepsOf(const TraceReader& trace, const StepSource& source,
                                  int64_t accumulate_steps, const StepRange& range) {
  // Micro-steps that were recorded as such are in one step of the trace.
  const auto asked = static_cast<size_t>(accumulate_steps);
  const size_t recorded = trace.step_count() == source.step_count ? 1 : asked;
  std::vector<RecordedStep> steps;
  for (size_t i = 0; i < source.step_count; ++i) {
    const int64_t number = trace.step_number((i + 1) * recorded - 1);
    if (number < range.first || number > range.last) continue;
    steps.push_back({i, number, FilesOf(trace, static_cast<int64_t>(recorded), i)});
  }
  return steps;
}

// What became of a step that the folder has.
enum class Found : uint8_t { kMissing, kSame, kOther };

Found FindStep(const ProfileWriter& writer, const RecordedStep& step) {
  const std::optional<std::vector<RecordedFile>> files = writer.FilesOf(step.number);
  if (!files) return Found::kMissing;
  const FileState now = StateIfThere(step.paths);
  if (files->size() != now.files.size()) return Found::kOther;
  for (size_t k = 0; k < files->size(); ++k) {
    const RecordedFile& then = (*files)[k];
    const bool alike = then.name == now.files[k].name && then.bytes == now.files[k].bytes;
    if (!alike || then.content != ContentHash(step.paths[k])) return Found::kOther;
  }
  return Found::kSame;
}

// Returns the source of these steps alone, each of which is written when it is loaded: by the
// thread that tabulates it.
StepSource Writing(const StepSource& source, const std::vector<RecordedStep>& steps,
                   const ProfileWriter& writer) {
  StepSource writing = source;
  writing.step_count = steps.size();
  writing.load = [&](size_t i, const StepOptions& options) {
    const RecordedStep& step = steps[i];
    FileState before = StateIfThere(step.paths);
    std::unique_ptr<Step> loaded = source.load(step.index, options);
    StepTables tables = loaded->tables();
    for (size_t k = 0; k < before.files.size(); ++k) {
      before.files[k].content = ContentHash(step.paths[k]);  // from the page cache
    }
    RequireUnchanged(step.paths, before);
    tables.files = std::move(before.files);
    writer.Write(tables);
    return loaded;
  };
  writing.describe = [&](size_t i) { return source.describe(steps[i].index); };
  if (source.read_ahead) {
    writing.read_ahead = [&](size_t i) { source.read_ahead(steps[i].index); };
  }
  return writing;
}

// Leaves the steps that the folder does not have, and says how many it has.
void LeaveOutFinished(const ProfileWriter& writer, std::vector<RecordedStep>& steps) {
  const size_t asked = steps.size();
  size_t changed = 0;
  std::erase_if(steps, [&](const RecordedStep& step) {
    const Found found = FindStep(writer, step);
    changed += found == Found::kOther ? 1 : 0;
    return found == Found::kSame;
  });
  if (const size_t skipped = asked - steps.size(); skipped > 0) {
    CurrentCaller().Note(fmt::format("skipping {} that {} there", Counted(skipped, "step"),
                                     skipped == 1 ? "is" : "are"));
  }
  if (changed > 0) {
    CurrentCaller().Note(
        fmt::format("replacing {} whose files have changed", Counted(changed, "step")));
  }
}

int RunProfile(const ProfileCommandOptions& options) {
  if (options.output == "-") {
    throw UsageError("-o", "cannot write a profile to standard output", "a folder",
                     Quoted(options.output));
  }
  for (const std::string& path : options.trace.paths) {
    if (!ProfileReader::IsProfile(path)) continue;
    throw InputError(Printable(path), "is a profile already", "a trace");
  }
  const TraceReader trace = OpenTrace(options.trace);
  const std::unique_ptr<ComputeDevice> device = OpenDevice(options.device, trace.file_bytes());
  ProfileSettings settings;
  settings.scaled = ScaledFormatsOf(options.scaled, "--scaled-format");
  settings.mantissas = MantissasOf(options.scales, "--scale");
  settings.tensors = options.trace.options.tensors;
  settings.accumulation = options.step.accumulation;
  settings.accumulate_steps = static_cast<int64_t>(options.accumulate_steps);
  settings.description = trace.description();
  const StepSource source = TraceSteps(trace, settings.accumulate_steps);
  ResultFiles files(options.results);
  std::vector<RecordedStep> steps =
      StepsOf(trace, source, settings.accumulate_steps, options.steps);
  for (const std::string& text : trace.notes()) CurrentCaller().Note(text);
  NoteDevice(device.get());
  if (steps.empty()) CurrentCaller().Note("no step has a number of --steps");
  using Existing = ProfileWriter::Existing;
  const ProfileWriter writer(options.output, settings,
                             options.restart ? Existing::kReplace : Existing::kContinue);
  LeaveOutFinished(writer, steps);
  StepOptions step_options = options.step;
  step_options.mantissas = settings.mantissas;
  step_options.scaled = settings.scaled;
  step_options.device = device.get();
  ForEachStep(Writing(source, steps, writer), step_options, [](size_t, Step&) { return true; });
  if (options.results.quiet && !files.json) return 0;
  const ProfileReader profile = ProfileReader::Open(options.output);
  if (files.json) {
    ProfileRecord record = {
        profile.folder(), {}, RecordedBytes(profile), profile.file_bytes(), profile.settings()};
    for (size_t i = 0; i < profile.step_count(); ++i) {
      record.steps.push_back(profile.step_number(i));
    }
    WriteJson(record, *files.json);
  }
  files.Commit();
  if (options.results.wants_report()) WriteReport(FormatSummary(profile));
  return 0;
}

}  // namespace

void AddProfileKeys(std::vector<KeyTable>& tables) { AddKeys<ProfileRecord>("", tables); }

Command ProfileCommand() {
  return MakeCommand<ProfileCommandOptions>(
      RunProfile, "profile",
      "Compress a trace into the tables of its tensors: a small folder to use in its place",
      "Examples:\n"
      "  dlsim profile runs/lm-kjv -o lm-kjv.profile\n"
      "  dlsim profile runs/lm-kjv -o lm-kjv.profile --steps 0:499\n"
      "  dlsim profile runs/lm-kjv -o lm-kjv.profile --scaled-format mxfp8 --scale 2e15\n"
      "  dlsim profile runs/lm-kjv -o lm-kjv.profile --device cuda:1");
}

}  // namespace dlsim::sim
