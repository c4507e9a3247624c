// SPDX-License-Identifier: Apache-2.0
#include "sim/app/file_arguments.h"

#include <sys/stat.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/trace.h"
#include "src/base/link_target.h"

namespace dlsim::sim {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 5> kOutputs = {"json", "csv", "summaries", "output", "out"};

// A file that the command line names.
struct FileArgument {
  std::string option;  // as users write it
  std::string path;
};

struct FileArguments {
  std::vector<FileArgument> inputs, outputs;
};

std::string OptionName(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name(true);
  if (!option.get_snames().empty()) return "-" + option.get_snames().front();
  return "--" + option.get_lnames().front();
}

bool IsOutput(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return false;  // a flag
  if (option.get_positional()) return option.get_name(true) == "OUT";
  const std::vector<std::string>& names = option.get_lnames();
  if (names.empty()) return false;
  return std::ranges::find(kOutputs, names.front()) != kOutputs.end();
}

void AddInputs(const CLI::Option& option, FileArguments& files) {
  const bool names_files = option.get_positional() || option.get_option_text() == "FILE";
  for (const std::string& value : option.results()) {
    const bool is_list = value.starts_with('@');
    if (names_files) files.inputs.push_back({OptionName(option), value});
    if (is_list) files.inputs.push_back({OptionName(option), value.substr(1)});
  }
}

FileArguments CollectFiles(const CLI::App& app) {
  FileArguments files;
  for (const CLI::App* command : app.get_subcommands()) {
    for (const CLI::Option* option : command->get_options()) {
      if (!IsOutput(*option)) {
        AddInputs(*option, files);
      } else if (option->count() > 0) {
        files.outputs.push_back({OptionName(*option), option->results().back()});
      }
    }
    FileArguments deeper = CollectFiles(*command);
    std::ranges::move(deeper.inputs, std::back_inserter(files.inputs));
    std::ranges::move(deeper.outputs, std::back_inserter(files.outputs));
  }
  return files;
}

bool IsRegular(const std::string& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed);
}

// True for one file under two names. Devices and pipes may be shared.
bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code failed;
  return IsRegular(a) && fs::equivalent(a, b, failed) && !failed;
}

// The same for files of which neither may exist yet, and for standard output.
bool IsSameOutput(const std::string& a, const std::string& b) {
  if (a == "-" || b == "-") return a == b;
  if (IsSameFile(a, b)) return true;
  std::error_code failed, failed_too;
  const auto target = [](const std::string& path, std::error_code& error) {
    return fs::weakly_canonical(fs::absolute(LinkTarget(path).value_or(path), error), error);
  };
  const fs::path path_a = target(a, failed), path_b = target(b, failed_too);
  return failed || failed_too ? a == b : path_a == path_b;
}

// True if a trace, a directory or the index of shards, reads `output`.
bool IsReadFrom(const std::string& input, const std::string& output) {
  std::error_code failed;
  const bool is_directory = fs::is_directory(input, failed);
  if (!is_directory && !input.ends_with(".json")) return false;
  const fs::path directory = is_directory ? fs::path(input) : fs::path(input).parent_path();
  const auto is_output = [&](const fs::directory_entry& entry) {
    return IsSameFile(output, entry.path().string());
  };
  const fs::directory_iterator entries(directory.empty() ? "." : directory, failed);
  if (failed || std::find_if(begin(entries), end(entries), is_output) == end(entries)) return false;
  if (IsSameFile(output, (directory / "trace.json").string())) return true;
  const TraceReader trace = TraceReader::Open(std::array<std::string, 1>{input}, {});
  for (size_t i = 0; i < trace.step_count(); ++i) {
    for (const std::string& path : trace.files(i)) {
      if (IsSameFile(output, path)) return true;
    }
  }
  return false;
}

// What cannot be opened is reported where it is read.
bool BelongsTo(const std::string& input, const std::string& output) {
  try {
    return IsReadFrom(input, output);
  } catch (const Error&) {
    return false;
  } catch (const fs::filesystem_error&) {
    return false;
  }
}

void CheckOutput(const FileArgument& output, const std::vector<FileArgument>& inputs) {
  if (output.path.empty()) throw UsageError(output.option, "names no file", "a file", "''");
  if (!IsRegular(output.path)) return;
  for (const FileArgument& input : inputs) {
    if (IsSameFile(output.path, input.path)) {
      throw UsageError(output.option, "would replace what " + input.option + " names",
                       "another file", Quoted(output.path));
    }
    if (BelongsTo(input.path, output.path)) {
      throw UsageError(output.option, "would replace a file of the trace", "another file",
                       Quoted(output.path));
    }
  }
}

}  // namespace

void CheckOutputAgainst(const std::string& option, const std::string& output,
                        const std::string& named_by, const std::vector<std::string>& paths) {
  std::vector<FileArgument> inputs;
  for (const std::string& path : paths) inputs.push_back({named_by, path});
  CheckOutput({option, output}, inputs);
}

void CheckFileArguments(const CLI::App& app) {
  const FileArguments files = CollectFiles(app);
  for (size_t i = 0; i < files.outputs.size(); ++i) {
    const FileArgument& output = files.outputs[i];
    CheckOutput(output, files.inputs);
    for (size_t k = 0; k < i; ++k) {
      if (!IsSameOutput(files.outputs[k].path, output.path)) continue;
      throw UsageError(output.option, "taken by " + files.outputs[k].option, "another file",
                       Quoted(output.path));
    }
  }
}

}  // namespace dlsim::sim
