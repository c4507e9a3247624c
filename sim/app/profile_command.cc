// SPDX-License-Identifier: Apache-2.0
// dlsim profile: what a trace's gradients look like, in a file that answers for any policy.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "sim/app/commands.h"
#include "sim/app/device_option.h"
#include "sim/app/profile_summary.h"
#include "sim/app/trace_arguments.h"
#include "sim/app/training_options.h"
#include "sim/base/caller.h"
#include "sim/base/json_value.h"
#include "sim/base/output_file.h"
#include "sim/base/progress.h"
#include "sim/base/quantity.h"
#include "sim/base/wrap.h"
#include "sim/profile/ladder_settings.h"
#include "sim/profile/profile_run.h"

namespace dlsim::sim {
namespace {

struct ProfileCommandOptions {
  TraceArguments trace;
  LadderSettings ladder;
  std::string output;
  std::optional<std::string> shard, json;
  Accumulation accumulation = Accumulation::kQuantizeThenSum;
  uint64_t accumulate_steps = 1, memory_bytes = kDefaultMemoryBytes;
  DeviceChoice device;
  bool restart = false, extend = false, quiet = false;

  void Visit(OptionRows& option);
};

constexpr uint64_t kMaxShards = 1'000'000'000;

// Reads "I/N", I counted from 1.
void ParseShard(const std::string& text, ProfileRequest& request) {
  const auto number = [](std::string_view digits) -> uint64_t {
    uint64_t value = 0;
    const char* const end = digits.data() + digits.size();
    const std::from_chars_result result = std::from_chars(digits.data(), end, value);
    return result.ec == std::errc() && result.ptr == end ? value : 0;
  };
  const std::string_view view = text;
  const size_t slash = std::min(view.find('/'), view.size());
  const uint64_t index = number(view.substr(0, slash));
  const uint64_t count = number(view.substr(std::min(slash + 1, view.size())));
  if (index < 1 || index > count || count > kMaxShards) {
    throw UsageError("--shard", "not a part of a whole", "I/N with I from 1 to N", Quoted(text));
  }
  request.shard = index - 1;
  request.shards = count;
}

ProfileRequest RequestOf(const ProfileCommandOptions& options) {
  ProfileRequest request;
  request.output = options.output;
  if (options.output == "-") {
    throw UsageError("-o", "cannot write a profile to standard output", "a file",
                     Quoted(options.output));
  }
  SetFormats(options.ladder, request.settings);
  request.settings.tensors = options.trace.options.tensors;
  request.settings.accumulation = options.accumulation;
  request.settings.accumulate_steps = static_cast<int64_t>(options.accumulate_steps);
  request.step.memory_bytes = options.memory_bytes;
  if (options.extend) request.existing = ProfileWriter::Existing::kExtend;
  if (options.restart) request.unfinished = Unfinished::kDiscard;
  if (options.shard) ParseShard(*options.shard, request);
  for (const std::string& path : options.trace.paths) {
    if (!ProfileReader::IsProfile(path)) continue;
    throw InputError(Printable(path), "is a profile already",
                     "a trace (dlsim merge joins profiles)");
  }
  return request;
}

// What the command works on.
struct Work {
  explicit Work(const ProfileCommandOptions& options)
      : request(RequestOf(options)),
        trace(OpenTrace(options.trace)),
        device(OpenDevice(options.device, trace.file_bytes())),
        run(trace, request) {
    request.settings.description = trace.description();
    request.step.device = device.get();
  }

  ProfileRequest request;
  TraceReader trace;
  std::unique_ptr<ComputeDevice> device;
  ProfileRun run;
};

void PrintNotes(const Work& work) {
  const auto note = [](const std::string& text) { CurrentCaller().Say("note: " + text); };
  for (const std::string& text : work.trace.notes()) note(text);
  NoteDevice(work.device.get());
  const ProfileRun& run = work.run;
  if (run.replaced()) {
    note(Printable(work.request.output) + ".partial had other settings and is replaced");
  }
  if (run.finished() > 0) {
    note(fmt::format("resuming: {} of {} done before {} kept, {} to go", run.kept(),
                     Counted(run.finished(), "step"), run.kept() == 1 ? "is" : "are",
                     run.to_read()));
  } else if (run.to_read() == 0) {
    note(fmt::format("shard {}/{} holds no step", work.request.shard + 1, work.request.shards));
  }
}

void WriteResults(const ProfileCommandOptions& options, OutputFile* json) {
  const std::array<std::string, 1> paths = {options.output};
  const ProfileReader profile = ProfileReader::Open(paths);
  if (json != nullptr) {
    json->Write(DumpJson(JsonSummary(options.output, profile)) + "\n");
    json->Commit();
  }
  if (options.quiet || options.json == "-") return;
  WriteReport(FormatSummary(options.output, profile));
}

int RunProfile(const ProfileCommandOptions& options) {
  Work work(options);
  work.run.Open();
  const std::unique_ptr<OutputFile> json =
      options.json ? std::make_unique<OutputFile>(*options.json) : nullptr;
  if (!options.quiet) PrintNotes(work);
  {
    // Steps count alike: files of one trace hardly differ in size.
    const double step_bytes =
        static_cast<double>(work.trace.file_bytes() * options.accumulate_steps) /
        static_cast<double>(work.trace.step_count());
    const auto bytes = [&](size_t steps) {
      return static_cast<uint64_t>(step_bytes * static_cast<double>(steps));
    };
    Progress progress("profile", bytes(work.run.to_read()),
                      options.quiet ? ProgressMode::kQuiet : ProgressMode::kAuto);
    work.run.Write([&](size_t done) { progress.Update(bytes(done)); });
  }
  WriteResults(options, json.get());
  return 0;
}

void VisitLadder(OptionRows& option, LadderSettings& settings) {
  option.Group("What the profile is exact for");
  option("--format", settings.formats, "F",
         "Number format for which results are exact, repeatable (default: fp16 bf16 cb16); of one "
         "with scales of its own, such as mxfp8, what each tensor loses is kept",
         FormatNamesAndScaled());
  option("--rounding", settings.roundings, "MODE",
         "Rounding mode for which results are exact, repeatable: rne, rtz, rna, ru or rd "
         "(default: all)",
         {"rne", "rtz", "rna", "ru", "rd"});
  option.Choice<std::vector<Subnormals>>(
      "--subnormals", settings.subnormals,
      {{NameOf(Subnormals::kKeep), {Subnormals::kKeep}},
       {NameOf(Subnormals::kFlushToZero), {Subnormals::kFlushToZero}},
       {"both", {Subnormals::kKeep, Subnormals::kFlushToZero}}},
      "RULE", "Treatment of subnormals for which results are exact: keep, flush or both (default)");
  option("--scales", settings.scales, "LIST",
         "Loss scales for which results are exact: numbers, ranges of powers of two such as "
         "2^-24..2^40, and the word default, separated by commas");
}

void ProfileCommandOptions::Visit(OptionRows& option) {
  trace.Visit(option, TraceInput::kTrace);
  VisitLadder(option, ladder);
  option.Group(kEmulationGroup);
  option("--accumulate", accumulation, "RULE", kAccumulateHelp);
  option("--grad-accum-steps", accumulate_steps,
         "Average N recorded steps into one optimizer step");
  VisitDevice(option, device);
  option.Threads();
  option.Memory(memory_bytes);
  option.Group(kOutputGroup);
  option("-o,--output", output, "FILE", "The profile to write").Required();
  option("--shard", shard, "I/N",
         "Profile only part I of N nearly equal parts of the steps; dlsim merge joins the parts");
  option("--extend", extend, "Keep the steps of an existing profile and add the missing ones");
  option("--restart", restart, "Start over, even if an interrupted run left FILE.partial");
  option.Output("--json", json, "Write what the profile holds as JSON");
  option("--quiet", quiet, "No summary, notes or progress; errors only");
}

}  // namespace

void AddProfileCommand(CLI::App& app, Action& action) {
  AddCommand<ProfileCommandOptions>(
      app, action, RunProfile, "profile",
      "Compress a trace into gradient histograms: a small file to use in its place",
      "Examples:\n"
      "  dlsim profile runs/lm-kjv -o lm-kjv.dlprof\n"
      "  dlsim profile runs/lm-kjv -o lm-kjv.dlprof --extend\n"
      "  dlsim profile runs/lm-kjv -o fp16.dlprof --format fp16 --rounding rne --scales 2^0..2^32\n"
      "  dlsim profile runs/lm-kjv -o lm-kjv.dlprof --format mxfp8 --format nvfp4\n"
      "  dlsim profile runs/lm-kjv -o part-1.dlprof --shard 1/64\n"
      "  dlsim profile runs/lm-kjv -o lm-kjv.dlprof --device cuda:1");
}

}  // namespace dlsim::sim
