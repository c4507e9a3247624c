// SPDX-License-Identifier: Apache-2.0
// The subcommands of dlsim. Each adds its options to the application; when the command line asks
// for it, it runs and returns the exit code.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/app/option_rows.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

// Set by the subcommand that was chosen.
using Action = std::function<int()>;

// Adds a command; what `chosen` does, the command line asks for.
CLI::App& AddCommand(CLI::App& app, const std::string& name, const std::string& description,
                     const std::string& footer, std::function<void()> chosen);

// Adds a command whose options are those of Options::Visit and which `run` carries out.
template <class Options, class Argument>
void AddCommand(CLI::App& app, Action& action, int (*run)(Argument), const std::string& name,
                const std::string& description, const std::string& footer) {
  const auto options = std::make_shared<Options>();
  OptionRows rows(AddCommand(app, name, description, footer, [options, run, &action] {
    action = [options, run] { return run(*options); };
  }));
  options->Visit(rows);
}

void AddFormatsCommand(CLI::App& app, Action& action);
void AddInfoCommand(CLI::App& app, Action& action);
void AddConvertCommand(CLI::App& app, Action& action);
void AddScalerCommand(CLI::App& app, Action& action);
void AddProfileCommand(CLI::App& app, Action& action);
void AddReplayCommand(CLI::App& app, Action& action);
void AddDiffCommand(CLI::App& app, Action& action);
void AddSweepCommand(CLI::App& app, Action& action);
void AddTuneCommand(CLI::App& app, Action& action);
void AddCompletionCommand(CLI::App& app, Action& action);
void AddHelpCommand(CLI::App& app, Action& action);  // which main.cc does before it parses
void AddPythonCommands(CLI::App& app, Action& action);

// Returns docs/keys.md: the keys of all results, and what they mean.
std::string ResultKeys();
void AddFormatsKeys(std::vector<KeyTable>& tables);
void AddInfoKeys(std::vector<KeyTable>& tables);

// An option of a command that only the Python package has.
struct PythonOption {
  std::string name;  // without "--"
  bool takes_value = false;
};

// Return the long options of a command, and the words that its first argument may be; empty for
// those that are not written in Python.
std::vector<PythonOption> PythonOptions(std::string_view command);
std::vector<std::string> PythonArguments(std::string_view command);

}  // namespace dlsim::sim
