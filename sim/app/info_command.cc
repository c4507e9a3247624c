// SPDX-License-Identifier: Apache-2.0
// dlsim info: what a trace or a profile holds.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/profile.h"
#include "dlsim/sim/step.h"
#include "dlsim/trace.h"
#include "sim/app/commands.h"
#include "sim/app/file_arguments.h"
#include "sim/app/gradient_input.h"
#include "sim/app/trace_arguments.h"
#include "sim/base/json_value.h"
#include "sim/base/output_file.h"
#include "sim/base/source_text.h"
#include "sim/base/table.h"
#include "sim/base/wrap.h"
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

struct TraceInfo {
  SourceFacts facts;
  Json steps = Json::array();
  size_t files = 0;
  std::vector<std::string> order;
  std::map<std::string, ListedTensor> tensors;

  void Add(const TensorInfo& tensor, uint64_t in_files, uint64_t elements) {
    const auto [found, added] = tensors.try_emplace(tensor.name, ListedTensor{tensor, 0, 0});
    if (added) order.push_back(tensor.name);
    found->second.files += in_files;
    found->second.elements += elements;
  }
};

TraceInfo ReadInfo(const TraceReader& trace) {
  TraceInfo info;
  info.facts = FactsOf(trace);
  for (size_t i = 0; i < trace.step_count(); ++i) {
    const TraceStep step = trace.Load(i);
    for (const Recording* const file : RecordedFiles(step)) {
      Json entry = {{"step", step.step}, {"file", file->place}};
      entry["micro"] = file->micro < 0 ? Json() : Json(file->micro);
      entry["rank"] = file->rank < 0 ? Json() : Json(file->rank);
      entry["metadata"] = file->metadata;
      info.steps.push_back(std::move(entry));
      ++info.files;
      for (const TraceTensor& tensor : file->tensors) {
        info.Add({tensor.name, tensor.role, tensor.dtype, tensor.shape}, 1, tensor.elements);
      }
    }
  }
  return info;
}

// A part without elements may as well be a file without the tensor.
TraceInfo ReadInfo(const ProfileReader& profile, const std::string& pattern) {
  TraceInfo info;
  const StepSource source = ProfileSteps(profile, pattern);
  info.facts = source.facts;
  for (size_t i = 0; i < source.step_count; ++i) {
    const std::unique_ptr<Step> opened = source.load(i, {});
    const StepTables& step = opened->tables();
    Json files = Json::array();
    for (const RecordedFile& file : step.files) {
      files.push_back({{"name", file.name}, {"bytes", file.bytes}});
    }
    Json micro = Json::array();
    for (const int64_t number : step.micro_steps) {
      if (number >= 0) micro.push_back(number);
    }
    info.steps.push_back({{"step", step.step},
                          {"files", std::move(files)},
                          {"micro_steps", std::move(micro)},
                          {"metadata", step.metadata}});
    info.files += step.files.size();
    for (size_t t = 0; t < step.tensors.size(); ++t) {
      uint64_t parts = 0, elements = 0;
      for (const std::vector<TensorTable>& part : step.parts) {
        parts += part[t].elements > 0 ? 1 : 0;
        elements += part[t].elements;
      }
      info.Add(step.tensors[t], parts, elements);
    }
  }
  return info;
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
  for (const std::string& name : info.order) {
    const ListedTensor& tensor = info.tensors.at(name);
    rows.push_back({Printable(name), std::string(NameOf(tensor.first.role)),
                    std::string(NameOf(tensor.first.dtype)), ShapeText(tensor.first.shape),
                    std::to_string(tensor.files)});
  }
  return text + "\n" + FormatTable(rows);
}

Json InfoJson(const InfoOptions& options, const TraceInfo& info) {
  Json tensors = Json::array();
  for (const std::string& name : info.order) {
    const ListedTensor& tensor = info.tensors.at(name);
    tensors.push_back({{"name", name},
                       {"role", NameOf(tensor.first.role)},
                       {"dtype", NameOf(tensor.first.dtype)},
                       {"shape", tensor.first.shape},
                       {info.facts.profile ? "parts" : "files", tensor.files},
                       {"elements", tensor.elements}});
  }
  return {{"schema", "dlsim.info/1"},
          {"trace", JsonTrace(info.facts, options.trace.paths)},
          {"notes", info.facts.notes},
          {"steps", info.steps},
          {"tensors", tensors}};
}

TraceInfo ReadInfo(const TraceArguments& arguments) {
  if (!IsProfile(arguments.paths)) return ReadInfo(OpenTrace(arguments));
  const std::string& pattern = arguments.options.tensors;
  const ProfileReader profile = ProfileReader::Open(arguments.paths.front());
  RequireSameRanks(profile, arguments.options.ranks);
  TraceInfo info = ReadInfo(profile, pattern);
  if (!info.order.empty()) return info;
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
  if (options.json) {
    WriteOutput(file, DumpJson(InfoJson(options, info)) + "\n");
  } else if (!options.quiet) {
    WriteReport(InfoText(info));
  }
  return 0;
}

}  // namespace

void AddInfoCommand(CLI::App& app, Action& action) {
  AddCommand<InfoOptions>(app, action, RunInfo, "info",
                          "List the steps and tensors of a trace or profile",
                          "Examples:\n"
                          "  dlsim info runs/lm-kjv\n"
                          "  dlsim info runs/lm-kjv --json info.json\n"
                          "  dlsim info lm-kjv.profile");
}

}  // namespace dlsim::sim
