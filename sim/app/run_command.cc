// SPDX-License-Identifier: Apache-2.0
#include "sim/app/run_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/error.h"
#include "sim/app/commands.h"
#include "sim/app/file_arguments.h"
#include "sim/app/help_format.h"
#include "sim/app/option_values.h"
#include "sim/app/version_text.h"
#include "sim/base/caller.h"
#include "sim/base/json_value.h"
#include "sim/base/output_file.h"
#include "sim/base/suggest.h"
#include "sim/base/wrap.h"

namespace dlsim::sim {
namespace {

// "dlsim replay" once the subcommand is known.
std::string CommandName(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return app.get_name() + (chosen.empty() ? "" : " " + chosen.front()->get_name());
}

// Says one line and returns the exit code.
int Fail(const CLI::App& app, const std::string& message, ErrorKind kind) {
  CurrentCaller().command = CommandName(app);
  CurrentCaller().Say(message);
  return static_cast<int>(kind);
}

const CLI::App& ChosenCommand(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : *chosen.front();
}

// " (did you mean '--format'?)" for an option that the chosen command does not have; else empty.
std::string MeantOption(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : ChosenCommand(app).get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  for (const std::string& given : app.remaining(true)) {
    if (!given.starts_with("--")) continue;
    const std::string suggestion = WithSuggestion("", given.substr(0, given.find('=')), known);
    if (!suggestion.empty()) return suggestion;
  }
  return "";
}

// The message of CLI11, but where an option lacks its value "--json: no value, expected FILE", not
// "--json: 1 required TEXT missing".
std::string MessageOf(const CLI::App& app, const CLI::ParseError& error) {
  const std::string message = Printable(error.what());
  if (error.get_name() != "ArgumentMismatch") return message + MeantOption(app);
  const std::string name = message.substr(0, message.find(':'));
  const CLI::Option* const option = ChosenCommand(app).get_option_no_throw(name);
  if (option == nullptr || !message.ends_with(" missing")) return message;
  return name + ": no value, expected " + option->get_option_text();
}

void AddCommands(CLI::App& app, Action& action) {
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  app.set_version_flag("-v,-V,--version", VersionText);
  for (const auto add :
       {AddReplayCommand, AddSweepCommand, AddTuneCommand, AddDiffCommand, AddProfileCommand,
        AddInfoCommand, AddScalerCommand, AddConvertCommand, AddFormatsCommand, AddPythonCommands,
        AddCompletionCommand, AddHelpCommand}) {
    add(app, action);
  }
  for (CLI::App* command : app.get_subcommands(nullptr)) command->group("Commands");
  app.footer(
      "Exit codes: 0 ok, 1 a requested check failed, 2 usage, 3 bad or unsupported input,\n"
      "4 incomparable baseline, 70 internal error. dlsim help COMMAND shows options and examples.");
}

void Print(const std::string& text) {
  OutputFile out("-");
  out.Write(text);
  out.Commit();
}

// CLI11 leaves two lines between groups.
void PrintHelp(const std::string& help) {
  Print(FitHelp(CLI::detail::find_and_replace(help, "\n\n\n", "\n\n"), OutputColumns()));
}

// CLI11 would only say that a subcommand is missing. Without any argument, the help comes before
// the error.
void RequireCommand(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  const std::vector<std::string_view> known(names.begin(), names.end());
  const std::string_view first = argc < 2 ? "" : argv[1];
  if (argc < 2) PrintHelp(app.help());
  if (first.empty()) throw UsageError("", "no command", OneOf(known));
  if (std::ranges::find(known, first) != known.end()) return;
  if (first.starts_with('-')) {
    if (app.get_option_no_throw(std::string(first)) != nullptr) return;  // --help, --version
    throw UsageError("", "unknown option", "a command, then its options", Quoted(first));
  }
  throw UsageError("", WithSuggestion("unknown command", first, known), OneOf(known),
                   Quoted(first));
}

Json ModelOf(const CLI::Option& option) {
  const bool is_flag = option.get_items_expected_max() == 0 && option.get_fnames().empty();
  return {{"name", option.get_lnames().front()},
          {"help", option.get_description()},
          {"value", is_flag ? Json() : Json(option.get_option_text())},
          {"optional_value", !option.get_fnames().empty()},
          {"repeatable", option.get_items_expected_max() > 1},
          {"values", OfferedValues(&option)},
          {"hidden", option.get_group().empty()}};
}

// Returns what `dlsim --dump-options` prints: of each command the long options in their order, each
// with its help, the placeholder of its value (null for a flag), the names that the value may be
// (empty: any text), and whether the value may be left out, the option given several times, or is
// not in the help.
std::string OptionModel(const CLI::App& app) {
  Json commands = Json::object();
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    Json options = Json::array();
    for (const CLI::Option* option : command->get_options()) {
      if (!option->get_lnames().empty() && option != command->get_help_ptr())
        options.push_back(ModelOf(*option));
    }
    commands[command->get_name()] = {{"description", command->get_description()},
                                     {"options", std::move(options)}};
  }
  return DumpJson({{"schema", "dlsim.options/1"}, {"commands", std::move(commands)}});
}

// "dlsim help COMMAND" is "dlsim COMMAND --help".
std::vector<char*> WithHelpAsOption(int argc, char** argv) {
  static char help[] = "--help";
  std::vector<char*> arguments(argv, argv + argc);
  if (argc < 2 || std::string_view(argv[1]) != "help") return arguments;
  if (argc > 2 && *argv[2] == '-') return arguments;  // dlsim help --help
  std::rotate(arguments.begin() + 1, arguments.begin() + 2, arguments.end());
  arguments.back() = help;
  return arguments;
}

// Answers --help and --version, or acts. Returns the exit code.
int ParseAndAct(CLI::App& app, const Action& action, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {
    std::ostringstream answer;
    app.exit(request, answer, answer);
    PrintHelp(answer.str());
    return 0;
  }
  CheckFileArguments(app);
  CurrentCaller().command = CommandName(app);
  return action();
}

}  // namespace

CLI::App& AddCommand(CLI::App& app, const std::string& name, const std::string& description,
                     const std::string& footer, std::function<void()> chosen) {
  CLI::App* const command = app.add_subcommand(name, description)->footer(footer);
  command->callback(std::move(chosen));
  return *command;
}

int RunCommand(int argc, char** argv) {
  const OfferedNames offered;
  CLI::App app("Simulates low-precision numerics and dynamic loss scaling on recorded gradients.",
               "dlsim");
  Action action;
  AddCommands(app, action);
  try {
    if (argc == 2 && std::string_view(argv[1]) == "--dump-options") {
      Print(OptionModel(app) + "\n");
      return 0;
    }
    if (argc == 2 && std::string_view(argv[1]) == "--dump-results") {
      Print(ResultKeys());
      return 0;
    }
    if (argc == 2 && std::string_view(argv[1]) == "--build-info") {
      Print(BuildInfoJson() + "\n");
      return 0;
    }
    std::vector<char*> arguments = WithHelpAsOption(argc, argv);
    RequireCommand(app, argc, arguments.data());
    return ParseAndAct(app, action, argc, arguments.data());
  } catch (const CLI::ParseError& error) {
    const std::string message = MessageOf(app, error) + " (see " + CommandName(app) + " --help)";
    return Fail(app, message, ErrorKind::kUsage);
  } catch (const Error& error) {
    return Fail(app, error.what(), error.kind());
  } catch (const std::bad_alloc&) {
    return Fail(app, "out of memory", ErrorKind::kInternal);
  } catch (const std::exception& error) {
    return Fail(app, error.what(), ErrorKind::kInternal);
  }
}

}  // namespace dlsim::sim
