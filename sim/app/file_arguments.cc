// SPDX-License-Identifier: Apache-2.0
#include "sim/app/commands.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "dlsim/error.h"
#include "sim/base/output_file.h"
#include "src/trace/layout.h"

namespace dlsim::sim {
namespace {

namespace fs = std::filesystem;

// A file that the command line names.
struct FileArgument {
  std::string option;  // as users write it
  std::string path;
};

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

// True if a trace, a directory or the index of shards, may read `output`. What cannot be opened is
// reported where it is read.
bool BelongsTo(const std::string& input, const std::string& output) {
  std::error_code failed;
  const bool is_directory = fs::is_directory(input, failed);
  if (!is_directory && !input.ends_with(".json")) return false;
  const fs::path directory = is_directory ? fs::path(input) : fs::path(input).parent_path();
  fs::directory_iterator entry(directory.empty() ? "." : directory, failed);
  for (; !failed && entry != fs::directory_iterator(); entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    const bool is_read = name == "trace.json" || !ContainerExtension(name).empty();
    if (is_read && IsSameFile(output, entry->path().string())) return true;
  }
  return false;
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

void CheckFileArguments(std::span<const OptionRow> rows) {
  std::vector<FileArgument> inputs, outputs;
  for (const OptionRow& row : rows) {
    const std::string name = row.name.substr(0, row.name.find(','));
    for (const std::string& text : row.given) {
      if (row.is_output) {
        outputs.push_back({name, text});
        continue;
      }
      if (row.is_argument() || row.value == "FILE") inputs.push_back({name, text});
      if (text.starts_with('@')) inputs.push_back({name, text.substr(1)});
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const FileArgument& output = outputs[i];
    CheckOutput(output, inputs);
    for (size_t k = 0; k < i; ++k) {
      if (!IsSameOutput(outputs[k].path, output.path)) continue;
      throw UsageError(output.option, "taken by " + outputs[k].option, "another file",
                       Quoted(output.path));
    }
  }
}

}  // namespace dlsim::sim
