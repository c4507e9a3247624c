// SPDX-License-Identifier: Apache-2.0
#include "sim/app/commands.h"

#include <algorithm>
#include <exception>
#include <new>
#include <sstream>

#include "dlsim/error.h"
#include "sim/base/caller.h"

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
     "format= tag= expect= json= csv= quiet", ""},
    {"bench", "Measure kernels, and compare two measurements (Python package)",
     "out= filter= repetitions= min-time= program= threshold=", "run compare"},
    {"report", "Write results as a self-contained HTML page (Python package)",
     "output= title= trace= no-trace format= policy= quiet", ""},
    {"import", "Convert dumps of other tools into traces or profiles (Python package)",
     "output= tensors= grad-scale= force quiet act-grad= key= step= npy-void= step-from= group=",
     "pt act-dumps te hdf5"},
    {"accumulate",
     "Measure the error of summing gradients over ranks in bf16, fp16 or float32 (Python package)",
     "world-size= scale= json=", ""},
    {"updates", "Replay recorded updates with weights and states in other formats (Python package)",
     "weights= states= rounding= seed= json=", ""},
};

std::vector<std::string> Split(const char* text) {
  std::istringstream words(text);
  std::vector<std::string> all;
  for (std::string word; words >> word;) all.push_back(word);
  return all;
}

// Options have the values of those of the same name in dlsim replay.
Command CommandOf(const PythonCommand& row, const Command& replay) {
  const auto refuse = []() -> int {
    throw UsageError("", "comes with the Python package only",
                     "the dlsim that `pip install .` installs");
  };
  Command command = {
      .name = row.name, .description = row.description, .run = refuse, .in_python = true};
  for (const std::string& word : Split(row.options)) {
    const bool takes_value = word.ends_with('=');
    OptionRow option = {.name = "--" + word.substr(0, word.size() - (takes_value ? 1 : 0)),
                        .takes = takes_value ? Takes::kOne : Takes::kNothing};
    const auto same = std::ranges::find(replay.rows, option.name, &OptionRow::name);
    if (same != replay.rows.end()) option.names = same->names;
    command.rows.push_back(std::move(option));
  }
  if (*row.arguments != '\0') {
    command.rows.push_back({.name = "COMMAND", .names = Split(row.arguments)});
  }
  return command;
}

void OptionModelRows(const OptionRow& of, RowSink& row) {
  row("name", of.long_name());
  row("help", of.help);
  row("value", of.takes == Takes::kNothing ? nullptr : &of.value);
  row("optional_value", of.takes == Takes::kMaybeOne);
  row("repeatable", of.takes == Takes::kSeveral);
  row("values", of.names);
  row("hidden", of.group.empty());
}

// The rows that the arguments are for, in order; the last may take all that are left.
void ReadArguments(std::span<const std::string> arguments, Command& command) {
  auto row = command.rows.begin();
  for (const std::string& text : arguments) {
    row = std::find_if(row, command.rows.end(), [](const OptionRow& one) {
      return one.is_argument() && (one.takes == Takes::kSeveral || one.given.empty());
    });
    if (row == command.rows.end()) {
      throw UsageError("", "too many arguments", "", Quoted(text));
    }
    row->Read(text);
  }
}

// The commands that are functions, in the order of the help.
constexpr Command (*kCommands[])() = {ReplayCommand, SweepCommand,   TuneCommand,
                                      DiffCommand,   ProfileCommand, InfoCommand,
                                      ScalerCommand, ConvertCommand, FormatsCommand};

Command CommandNamed(std::string_view name) {
  for (const auto make : kCommands) {
    Command command = make();
    if (command.name == name) return command;
  }
  throw UsageError("", "unknown command", "", Quoted(name));
}

OptionRow& OptionNamed(const std::string& name, Command& command) {
  for (OptionRow& row : command.rows) {
    if (!row.is_argument() && row.long_name() == name) return row;
  }
  throw UsageError("--" + name, "unknown option");
}

void CheckGiven(const Command& command) {
  for (const OptionRow& row : command.rows) {
    if (row.required && row.given.empty()) throw UsageError("", row.name + " is required");
  }
}

}  // namespace

std::vector<Command> Commands() {
  std::vector<Command> commands;
  for (const auto make : kCommands) commands.push_back(make());
  for (const PythonCommand& row : kPythonCommands) {
    commands.push_back(CommandOf(row, commands.front()));
  }
  commands.push_back(CompletionCommand());
  Command help = {"help", "Show the options and examples of a command",
                  "Examples:\n  dlsim help replay"};
  help.rows.push_back(
      {.name = "COMMAND", .help = "The command (default: list all)", .takes = Takes::kSeveral});
  for (const Command& command : commands) help.rows.front().names.push_back(command.name);
  commands.push_back(std::move(help));
  return commands;
}

std::string OptionModel() {
  const std::vector<Command> commands = Commands();
  const auto of_command = [](const Command& command, RowSink& row) {
    std::vector<OptionRow> options = command.rows;
    std::erase_if(options, [](const OptionRow& one) { return one.is_argument(); });
    row("description", command.description);
    row.List("options", "", options, OptionModelRows);
  };
  return JsonText([&](RowSink& row) {
    row("schema", "dlsim.options/1");
    row.Object("commands", "", [&](RowSink& all) {
      for (const Command& command : commands) {
        all.Object(command.name.c_str(), "", [&](RowSink& one) { of_command(command, one); });
      }
    });
  });
}

int CallCommand(std::string_view name, std::span<const std::string> arguments,
                std::span<const std::pair<std::string, std::string>> options) {
  return RunGuarded([&] {
    Command command = CommandNamed(name);
    CurrentCaller().command = "dlsim " + command.name;
    ReadArguments(arguments, command);
    for (const auto& [option, text] : options) OptionNamed(option, command).Read(text);
    CheckGiven(command);
    CheckFileArguments(command.rows);
    return command.run();
  });
}

int RunGuarded(const std::function<int()>& work) {
  const auto fail = [](const std::string& message, ErrorKind kind) {
    CurrentCaller().Say(message);
    return static_cast<int>(kind);
  };
  try {
    return work();
  } catch (const Error& error) {
    return fail(error.what(), error.kind());
  } catch (const std::bad_alloc&) {
    return fail("out of memory", ErrorKind::kInternal);
  } catch (const std::exception& error) {
    return fail(error.what(), ErrorKind::kInternal);
  }
}

}  // namespace dlsim::sim
