// SPDX-License-Identifier: Apache-2.0
#include "sim/app/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "sim/advice/advice.h"
#include "sim/app/scaler_run.h"
#include "sim/base/caller.h"
#include "sim/base/expectation.h"
#include "sim/base/files.h"
#include "sim/base/shared_rows.h"
#include "sim/replay/results.h"
#include "sim/scaled/scaled.h"
#include "sim/sweep/results.h"
#include "src/trace/layout.h"

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
    // The rows that the arguments are for, in order; the last may take all that are left.
    auto row = command.rows.begin();
    for (const std::string& text : arguments) {
      row = std::find_if(row, command.rows.end(), [](const OptionRow& one) {
        return one.is_argument() && (one.takes == Takes::kSeveral || one.given.empty());
      });
      if (row == command.rows.end()) throw UsageError("", "too many arguments", "", Quoted(text));
      row->Read(text);
    }
    for (const auto& [option, text] : options) OptionNamed(option, command).Read(text);
    for (const OptionRow& one : command.rows) {
      if (one.required && one.given.empty()) throw UsageError("", one.name + " is required");
    }
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

// dlsim --dump-results: docs/keys.md, the keys of all results, from their rows.

namespace {

constexpr const char* kIntroduction =
    R"(# Keys of results

*What are the keys of `--json` and the columns of `--csv`?* All are listed here, by the command and by the
object that has them. `dlsim --dump-results` prints this page. [Results](results.md) says what they have
in common. A name such as `runs[].steps[]` is an object of the list `steps` in an object of the list `runs`;
what several objects have is listed where it comes first. Keys of `explain`, `accumulate` and `updates`, which
are written in Python, are in [explain](explain.md#results), [accumulation](accumulation.md) and
[updates](updates.md).
)";

struct Section {
  const char* title;
  void (*add)(std::vector<KeyTable>& tables);
};

constexpr Section kSections[] = {
    {"What was read: `trace`", AddTraceKeys},
    {"The verdict", AddAdviceKeys},
    {"The verdict on a scaled format", AddScaledKeys},
    {"With --expect: `expectations`", AddOutcomeKeys},
    {"dlsim replay: `dlsim.replay/1`", AddReplayKeys},
    {"Of dlsim replay: `options`", AddReplayOptionKeys},
    {"dlsim replay --summaries: `dlsim.summaries/1`", AddSummariesKeys},
    {"dlsim sweep: `dlsim.sweep/1`", AddSweepKeys},
    {"Of dlsim sweep: `options`", AddSweepOptionKeys},
    {"dlsim tune: `dlsim.tune/1`", AddTuneKeys},
    {"dlsim diff: `dlsim.diff/1`", AddDiffKeys},
    {"Of dlsim diff: `options`", AddDiffOptionKeys},
    {"dlsim scaler: `dlsim.scaler/1`", AddScalerKeys},
    {"dlsim info: `dlsim.info/1`", AddInfoKeys},
    {"dlsim profile: `dlsim.profile-report/1`", AddProfileKeys},
    {"dlsim formats: `dlsim.formats/1`", AddFormatsKeys},
};

}  // namespace

std::string ResultKeys() {
  std::string text = kIntroduction;
  std::vector<KeyTable> tables;
  for (const auto& [title, add] : kSections) {
    const size_t before = tables.size();
    add(tables);
    text += fmt::format("\n## {}\n", title);
    for (size_t i = before; i < tables.size(); ++i) {
      if (tables[i].keys.empty()) continue;
      const std::string& path = tables[i].path;
      const std::string of = path.empty() ? "" : fmt::format(" of `{}`", path);
      text += fmt::format("\n| Key{} | Meaning |\n|---|---|\n", of);
      for (const auto& [name, meaning] : tables[i].keys) {
        text += fmt::format("| `{}` | {} |\n", name, meaning);
      }
    }
  }
  return text;
}

}  // namespace dlsim::sim
