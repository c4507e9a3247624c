// SPDX-License-Identifier: Apache-2.0
// dlsim info: what a trace holds, from its headers alone.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/trace.h"
#include "sim/commands/commands.h"
#include "sim/commands/trace_arguments.h"
#include "sim/output/json_value.h"
#include "sim/output/output_file.h"
#include "sim/output/table.h"
#include "trace/tensor_rules.h"

namespace dlsim {
namespace {

struct InfoOptions {
  TraceArguments trace;
  bool json = false;
};

// A tensor over all steps of the trace.
struct TensorInfo {
  TraceTensor first;  // as it is in the first file that has it
  uint64_t files = 0;
  uint64_t elements = 0;  // over all files
};

struct TraceInfo {
  Json steps = Json::array();
  std::vector<std::string> order;
  std::map<std::string, TensorInfo> tensors;
};

TraceInfo ReadInfo(const TraceReader& trace) {
  TraceInfo info;
  for (size_t i = 0; i < trace.step_count(); ++i) {
    const TraceStep step = trace.Load(i);
    for (const Recording* const file : RecordedFiles(step)) {
      Json entry = {{"step", step.step}, {"file", file->place}};
      entry["micro"] = file->micro < 0 ? Json() : Json(file->micro);
      entry["rank"] = file->rank < 0 ? Json() : Json(file->rank);
      entry["metadata"] = file->metadata;
      info.steps.push_back(std::move(entry));
      for (const TraceTensor& tensor : file->tensors) {
        const auto [found, added] = info.tensors.try_emplace(tensor.name, TensorInfo{tensor, 0, 0});
        if (added) info.order.push_back(tensor.name);
        ++found->second.files;
        found->second.elements += tensor.elements;
      }
    }
  }
  return info;
}

std::string InfoText(const TraceReader& trace, const TraceInfo& info) {
  std::string text;
  for (const auto& [key, value] : trace.description()) {
    text += fmt::format("{}: {}\n", Printable(key), Printable(value));
  }
  text += fmt::format("steps: {} ({} to {}), files: {}, bytes: {}\n", trace.step_count(),
                      trace.step_number(0), trace.step_number(trace.step_count() - 1),
                      info.steps.size(), trace.file_bytes());
  for (const std::string& note : trace.notes()) text += "note: " + note + "\n";
  std::vector<TableRow> rows = {{"tensor", "role", "type", "shape", "files"}};
  for (const std::string& name : info.order) {
    const TensorInfo& tensor = info.tensors.at(name);
    rows.push_back({Printable(name), RoleName(tensor.first.role), DTypeName(tensor.first.dtype),
                    ShapeText(tensor.first.shape), std::to_string(tensor.files)});
  }
  return text + "\n" + FormatTable(rows);
}

Json InfoJson(const TraceReader& trace, const InfoOptions& options, const TraceInfo& info) {
  Json tensors = Json::array();
  for (const std::string& name : info.order) {
    const TensorInfo& tensor = info.tensors.at(name);
    tensors.push_back({{"name", name},
                       {"role", RoleName(tensor.first.role)},
                       {"dtype", DTypeName(tensor.first.dtype)},
                       {"shape", tensor.first.shape},
                       {"files", tensor.files},
                       {"elements", tensor.elements}});
  }
  return {{"schema", "dlsim.info/1"},
          {"trace", JsonTrace(FactsOf(trace), options.trace.paths)},
          {"notes", trace.notes()},
          {"steps", info.steps},
          {"tensors", tensors}};
}

int RunInfo(const InfoOptions& options) {
  const TraceReader trace = OpenTrace(options.trace);
  const TraceInfo info = ReadInfo(trace);
  OutputFile out("-");
  out.Write(options.json ? DumpJson(InfoJson(trace, options, info)) + "\n" : InfoText(trace, info));
  out.Commit();
  return 0;
}

}  // namespace

void AddInfoCommand(CLI::App& app, Action& action) {
  const auto options = std::make_shared<InfoOptions>();
  CLI::App* command = app.add_subcommand("info", "List what a trace holds, from its headers");
  AddTraceArguments(*command, options->trace);
  command->add_flag("--json", options->json, "Print JSON");
  command->footer("Example:\n  dlsim info runs/lm-kjv");
  command->callback([options, &action] { action = [options] { return RunInfo(*options); }; });
}

}  // namespace dlsim
