// SPDX-License-Identifier: Apache-2.0
// The commands that only the Python package has: listed here, so that dlsim has one list of them.
#include <string>

#include "dlsim/error.h"
#include "sim/app/commands.h"

namespace dlsim::sim {
namespace {

struct PythonCommand {
  const char* name;
  const char* description;
};

// As in python/dlsim/_command.py, which takes these before this program is started.
constexpr PythonCommand kPythonCommands[] = {
    {"report", "A self-contained HTML page of results (Python package)"},
    {"import", "Dumps of other tools to traces or profiles (Python package)"},
    {"export", "Results to Parquet or CSV tables (Python package)"},
};

}  // namespace

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
