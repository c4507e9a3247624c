// SPDX-License-Identifier: Apache-2.0
// The commands that only the Python package has: listed here, so that dlsim has one list of them.
#include <CLI/CLI.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/error.h"
#include "sim/app/commands.h"

namespace dlsim::sim {
namespace {

struct PythonCommand {
  const char* name;
  const char* description;
  const char* options;    // '=' after one that takes a value
  const char* arguments;  // the words that the first may be; empty: a file
};

// As in python/dlsim/_command.py, which takes these before this program is started, and the parsers
// that it names; a test compares the options.
constexpr PythonCommand kPythonCommands[] = {
    {"explain",
     "Find out from a training log why steps were skipped, and which policy it had (Python "
     "package)",
     "help format= tag= expect= json= csv= quiet", ""},
    {"bench", "Measure kernels, and compare two measurements (Python package)",
     "help out= filter= repetitions= min-time= program= threshold=", "run compare"},
    {"report", "Write results as a self-contained HTML page (Python package)",
     "help output= title= trace= no-trace format= policy= quiet", ""},
    {"import", "Convert dumps of other tools into traces or profiles (Python package)",
     "help output= tensors= grad-scale= force quiet act-grad= key= step= npy-void= step-from= "
     "group=",
     "pt act-dumps te hdf5"},
    {"accumulate",
     "Measure the error of summing gradients over ranks in bf16, fp16 or float32 (Python package)",
     "help world-size= scale= json=", ""},
    {"updates", "Replay recorded updates with weights and states in other formats (Python package)",
     "help weights= states= rounding= seed= json=", ""},
};

std::vector<std::string> Split(const char* text) {
  std::istringstream words(text);
  std::vector<std::string> all;
  for (std::string word; words >> word;) all.push_back(word);
  return all;
}

const PythonCommand* Find(std::string_view name) {
  for (const PythonCommand& row : kPythonCommands) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace

std::vector<PythonOption> PythonOptions(std::string_view command) {
  std::vector<PythonOption> options;
  const PythonCommand* const row = Find(command);
  if (row == nullptr) return options;
  for (const std::string& word : Split(row->options)) {
    const bool takes_value = word.ends_with('=');
    options.push_back({word.substr(0, word.size() - (takes_value ? 1 : 0)), takes_value});
  }
  return options;
}

std::vector<std::string> PythonArguments(std::string_view command) {
  const PythonCommand* const row = Find(command);
  return row == nullptr ? std::vector<std::string>() : Split(row->arguments);
}

void AddPythonCommands(CLI::App& app, Action& action) {
  for (const PythonCommand& row : kPythonCommands) {
    CLI::App* command = app.add_subcommand(row.name, row.description);
    command->set_help_flag();
    command->prefix_command();  // any arguments
    command->callback([&action] {
      action = []() -> int {
        throw UsageError("", "comes with the Python package only",
                         "the dlsim that `pip install .` installs");
      };
    });
  }
}

}  // namespace dlsim::sim
