// SPDX-License-Identifier: Apache-2.0
// dlsim info: what a trace or a profile holds.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/profile.h"
#include "dlsim/sim/step.h"
#include "dlsim/trace.h"
#include "sim/app/commands.h"
#include "sim/app/shared_options.h"
#include "sim/base/files.h"
#include "sim/base/rows.h"
#include "sim/base/shared_rows.h"
#include "sim/base/table.h"
#include "sim/replay/step_sources.h"
#include "src/trace/tensor_rules.h"

namespace dlsim::sim {
namespace {

struct InfoOptions {
  TraceArguments trace;
  bool json = false, quiet = false;

  void Visit(OptionRows& option) {
    trace.Visit(option);
    option.Group(kOutputGroup);
    option("--json", json, "Print JSON; with --json FILE.json, write it to that file");
    option("--quiet", quiet, "No list, only errors: checks whether the trace can be read");
  }
};

// A tensor over all steps of the trace.
struct ListedTensor {
  TensorInfo first;  // as it is in the first file that has it
  uint64_t files = 0;
  uint64_t elements = 0;  // over all files
};

// A file of a trace, or a step of a profile.
struct ListedStep {
  int64_t step = 0;
  std::optional<std::string> file = {};
  std::optional<int64_t> micro = {}, rank = {};
  std::vector<RecordedFile> files = {};
  std::vector<int64_t> micro_steps = {};
  std::map<std::string, std::string> metadata = {};
};

struct TraceInfo {
  std::span<const std::string> paths;
  SourceFacts facts;
  std::vector<ListedStep> steps = {};
  size_t files = 0;
  std::vector<ListedTensor> tensors = {};  // in order of first appearance
  std::map<std::string, size_t> places = {};

  void Add(const TensorInfo& tensor, uint64_t in_files, uint64_t elements) {
    const auto [place, added] = places.try_emplace(tensor.name, tensors.size());
    if (added) tensors.push_back({tensor, 0, 0});
    tensors[place->second].files += in_files;
    tensors[place->second].elements += elements;
  }
};

void FileRows(const RecordedFile& of, RowSink& row) {
  row("name", of.name, "without directories");
  row("bytes", of.bytes, "its size");
}

inline void Rows(const ListedStep& of, RowSink& row) {
  row("step", of.step, "recorded number");
  row("file", of.file, "that holds it; null of a profile, as the next two");
  row("micro", of.micro, "number of the micro-step; null without micro-steps");
  row("rank", of.rank, "data-parallel rank; null without ranks");
  row.List("files", "of a profile: files that the step was made from", of.files, FileRows,
           kLeftOutIfEmpty);
  row("micro_steps", of.micro_steps, "of a profile with micro-steps: their numbers",
      kLeftOutIfEmpty);
  row("metadata", of.metadata, "text as recorded; of a profile that of its first file");
}

inline void Rows(const ListedTensor& of, RowSink& row) {
  row("name", of.first.name, "as recorded");
  row("role", of.first.role, "`grad`, `act_grad`, `act` or `value`");
  row("dtype", of.first.dtype, "`F32`, `F64`, `F16` or `BF16`, in the first file that has it");
  row("shape", of.first.shape, "in the first file that has it");
  row("files", of.files,
      "that have it; of a profile parts, micro-steps or whole steps, in which it has elements");
  row("elements", of.elements, "over all files");
}

inline void Rows(const TraceInfo& of, RowSink& row) {
  row("schema", "dlsim.info/1");
  row("trace", RowsOf(of.facts, of.paths), "as in `dlsim.replay/1`");
  row("notes", of.facts.notes, "remarks such as files left out");
  row("steps", of.steps, "of a trace one object per file; of a profile one per step");
  row("tensors", of.tensors, "one object per tensor");
}

void ReadInfo(const TraceReader& trace, TraceInfo& info) {
  info.facts = FactsOf(trace);
  const auto if_any = [](int64_t number) {
    return number < 0 ? std::nullopt : std::optional(number);
  };
  for (size_t i = 0; i < trace.step_count(); ++i) {
    const TraceStep step = trace.Load(i);
    for (const Recording* const file : RecordedFiles(step)) {
      info.steps.push_back({.step = step.step,
                            .file = file->place,
                            .micro = if_any(file->micro),
                            .rank = if_any(file->rank),
                            .metadata = file->metadata});
      ++info.files;
      for (const TraceTensor& tensor : file->tensors) {
        info.Add(*tensor.info, 1, tensor.elements);
      }
    }
  }
}

// A part without elements may as well be a file without the tensor.
void ReadInfo(const ProfileReader& profile, const std::string& pattern, TraceInfo& info) {
  const StepSource source = ProfileSteps(profile, pattern);
  info.facts = source.facts;
  for (size_t i = 0; i < source.step_count; ++i) {
    const std::unique_ptr<Step> opened = source.load(i, {});
    const StepTables& step = opened->tables();
    ListedStep& listed = info.steps.emplace_back();
    listed = {.step = step.step, .files = step.files, .metadata = step.metadata};
    std::ranges::copy_if(step.micro_steps, std::back_inserter(listed.micro_steps),
                         [](int64_t number) { return number >= 0; });
    info.files += step.files.size();
    for (size_t t = 0; t < step.tensors.size(); ++t) {
      uint64_t parts = 0, elements = 0;
      for (const std::vector<TensorTable>& part : step.parts) {
        parts += part[t].elements > 0 ? 1 : 0;
        elements += part[t].elements;
      }
      info.Add(*step.tensors[t], parts, elements);
    }
  }
}

std::string InfoText(const TraceInfo& info) {
  const SourceFacts& facts = info.facts;
  std::string text;
  for (const auto& [key, value] : facts.description) {
    text += fmt::format("{}: {}\n", Printable(key), Printable(value));
  }
  text += fmt::format("steps: {} ({} to {}), files: {}, bytes: {}\n", facts.steps, facts.first_step,
                      facts.last_step, info.files, facts.file_bytes);
  if (facts.profile) text += DescribeProfile(*facts.profile, facts.file_bytes);
  for (const std::string& note : facts.notes) text += "note: " + note + "\n";
  const char* counted = facts.profile ? "parts" : "files";
  std::vector<TableRow> rows = {{"tensor", "role", "type", "shape", counted}};
  for (const ListedTensor& tensor : info.tensors) {
    rows.push_back({Printable(tensor.first.name), std::string(NameOf(tensor.first.role)),
                    std::string(NameOf(tensor.first.dtype)), ShapeText(tensor.first.shape),
                    std::to_string(tensor.files)});
  }
  return text + "\n" + FormatTable(rows);
}

TraceInfo ReadInfo(const TraceArguments& arguments) {
  TraceInfo info = {arguments.paths, {}};
  if (!IsProfile(arguments.paths)) {
    ReadInfo(OpenTrace(arguments), info);
    return info;
  }
  const std::string& pattern = arguments.options.tensors;
  const ProfileReader profile = ProfileReader::Open(arguments.paths.front());
  RequireSameRanks(profile, arguments.options.ranks);
  ReadInfo(profile, pattern, info);
  if (!info.tensors.empty()) return info;
  throw InputError(Printable(arguments.paths.front()), NoTensorMatches(pattern));
}

// Takes the file of `--json FILE` out of the paths: no trace is a file of this name.
std::string TakeJsonFile(std::vector<std::string>& paths) {
  const auto found = std::ranges::find_if(paths, [](const std::string& path) {
    return path.ends_with(".json") && !path.ends_with(".safetensors.index.json");
  });
  if (found == paths.end() || paths.size() < 2) return "-";
  const std::string file = *found;
  paths.erase(found);
  return file;
}

int RunInfo(InfoOptions options) {
  const std::string file = options.json ? TakeJsonFile(options.trace.paths) : "-";
  if (file != "-") CheckOutputAgainst("--json", file, "TRACE", options.trace.paths);
  const TraceInfo info = ReadInfo(options.trace);
  bool wants_text = !options.json;
  if (options.json) {
    OutputFile out(file);
    wants_text = WriteJson(info, out);  // objects come with their text
    out.Commit();
  }
  if (wants_text && !options.quiet) WriteReport(InfoText(info));
  return 0;
}

}  // namespace

void AddInfoKeys(std::vector<KeyTable>& tables) { AddKeys<TraceInfo>("", tables); }

Command InfoCommand() {
  return MakeCommand<InfoOptions>(RunInfo, "info",
                                  "List the steps and tensors of a trace or profile",
                                  "Examples:\n"
                                  "  dlsim info runs/lm-kjv\n"
                                  "  dlsim info runs/lm-kjv --json info.json\n"
                                  "  dlsim info lm-kjv.profile");
}

}  // namespace dlsim::sim
