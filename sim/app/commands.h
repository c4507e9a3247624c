// SPDX-License-Identifier: Apache-2.0
// The commands of dlsim as data: name, help, options, and what carries them out.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/app/option_rows.h"
#include "sim/base/caller.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

struct Command {
  std::string name, description;
  std::string footer = {};           // of the help: examples
  std::function<int()> run = {};     // returns the exit code
  std::vector<OptionRow> rows = {};  // options and arguments, in the order of the help
  bool in_python = false;            // this program lists it, and refuses it
};

// Returns a command whose options are those of Options::Visit and which `run` carries out.
template <class Options, class Argument>
Command MakeCommand(int (*run)(Argument), std::string name, std::string description,
                    std::string footer) {
  const auto options = std::make_shared<Options>();
  Command command = {std::move(name), std::move(description), std::move(footer), [options, run] {
                       if constexpr (requires { options->results.quiet; }) {
                         CurrentCaller().quiet = options->results.quiet;
                       }
                       return run(*options);
                     }};
  OptionRows rows(command.rows);
  options->Visit(rows);
  return command;
}

Command FormatsCommand();
Command InfoCommand();
Command ConvertCommand();
Command ScalerCommand();
Command ProfileCommand();
Command ReplayCommand();
Command DiffCommand();
Command SweepCommand();
Command TuneCommand();
Command CompletionCommand();

// Returns all commands in the order of `dlsim --help`, those that only the Python package has among
// them.
std::vector<Command> Commands();

// Returns what `dlsim --dump-options` prints: JSON of all commands and options, from which the
// Python package makes its keywords.
std::string OptionModel();

// Runs a command as a function: reads the arguments, then the options, each a name and a text, and
// carries it out. What it
// writes and says goes to the current caller. Returns the exit code. Throws Canceled if the caller
// ends the work.
int CallCommand(std::string_view name, std::span<const std::string> arguments,
                std::span<const std::pair<std::string, std::string>> options);

// Runs the command of a command line, whose first word is the program's, in the same way.
int RunCommand(int argc, char** argv);

// What main does. It installs handlers, and ends the process where memory runs out: for a process
// of its own. In command_main.cc.
int CommandMain(int argc, char** argv);

// Carries out work and returns its exit code; says why it failed, in one line.
int RunGuarded(const std::function<int()>& work);

// Refuses, before any work, an output that has no name, is another output, or is a file that a row
// names or that belongs to a trace; through links as well. Throws UsageError. Arguments, options of
// a FILE, and values @FILE are inputs.
void CheckFileArguments(std::span<const OptionRow> rows);

// The same of one output, against inputs that are named in another way, or found: `named_by` is the
// option or argument that leads to them.
void CheckOutputAgainst(const std::string& option, const std::string& output,
                        const std::string& named_by, const std::vector<std::string>& paths);

// Returns "dlsim 0.1.0 (commit 85146f5, SIMD AVX2, with OPENMP)": the commit if the program was
// built from a checkout, with "modified" after it if files of the commit were changed.
std::string VersionText();

// Returns the JSON of `dlsim --build-info`, which tells this program from another that is timed.
std::string BuildInfoJson();

// Returns docs/keys.md: the keys of all results, and what they mean.
std::string ResultKeys();
void AddFormatsKeys(std::vector<KeyTable>& tables);
void AddProfileKeys(std::vector<KeyTable>& tables);
void AddInfoKeys(std::vector<KeyTable>& tables);
void AddReplayOptionKeys(std::vector<KeyTable>& tables);
void AddTuneKeys(std::vector<KeyTable>& tables);
void AddSweepOptionKeys(std::vector<KeyTable>& tables);
void AddDiffKeys(std::vector<KeyTable>& tables);
void AddDiffOptionKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
