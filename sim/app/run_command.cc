// SPDX-License-Identifier: Apache-2.0
// The command line: the only file that knows CLI11, which takes six seconds to compile.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/error.h"
#include "sim/app/commands.h"
#include "sim/base/caller.h"
#include "sim/base/files.h"
#include "sim/base/parse.h"
#include "sim/base/table.h"

namespace dlsim::sim {
namespace {

// Says of an option in --help whether it is required and which other it excludes.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() {
    label("Positionals", "Arguments");
    label("SUBCOMMAND", "COMMAND");
  }

  // Of a flag whose value may be left out, "--heat-map[=BINS]" instead of its default value.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    const std::string name = CLI::Formatter::make_option_name(option, is_positional);
    return name.substr(0, name.find('{'));
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = option->get_option_text();
    if (option->get_positional()) return "";  // said by the usage
    if (!option->get_fnames().empty()) {
      text = "[=" + text + "]";
    } else if (!text.empty()) {
      text = " " + text;
    }
    // Of several, the others say it of this one.
    const std::set<CLI::Option*>& excludes = option->get_excludes();
    const bool says_it = text.empty() && excludes.size() == 1;
    return text + (option->get_required() ? " (required)" : "") +
           (says_it ? " (not with " + (*excludes.begin())->get_name() + ")" : "");
  }

  std::string make_option_usage(const CLI::Option* option) const override {
    if (!option->get_option_text().empty()) return option->get_option_text();
    const std::string name = make_option_name(option, true);
    const std::string text = option->get_expected_max() > 1 ? name + "..." : name;
    return option->get_required() ? text : "[" + text + "]";
  }

  // A group of options of which one is required.
  std::string make_expanded(const CLI::App* group) const override {
    const auto is_option = [group](const CLI::Option* option) {
      return option->nonpositional() && option != group->get_help_ptr();
    };
    return make_group(group->get_group() + " (exactly one is required)", false,
                      group->get_options(is_option));
  }
};

// "dlsim replay" once the subcommand is known.
std::string CommandName(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return app.get_name() + (chosen.empty() ? "" : " " + chosen.front()->get_name());
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

// A flag may have a truth value after '='.
void ReadFlag(const std::string& text, const std::string& name, OptionRow& row) {
  try {
    row.Read(CLI::detail::to_flag_value(text) > 0 ? "true" : "false");
  } catch (const std::invalid_argument&) {
    throw CLI::ConversionError({text}, name);
  }
}

CLI::Option* AddOption(OptionRow& row, CLI::App& app) {
  const auto read = [&row](const std::string& text) { row.Read(text); };
  const auto read_all = [&row](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) row.Read(text);
  };
  switch (row.takes) {
    case Takes::kNothing:
      return app.add_flag(row.name)->each(
          [&row](const std::string& text) { ReadFlag(text, row.name, row); });
    case Takes::kMaybeOne:
      return app.add_flag(row.name + "{" + row.value_if_none + "}")->each(read);
    case Takes::kOne:
      if (!row.repeats) return app.add_option_function<std::string>(row.name, read);
      return app.add_option_function<std::vector<std::string>>(row.name, read_all)
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    case Takes::kSeveral:
      return app.add_option_function<std::vector<std::string>>(row.name, read_all)
          ->allow_extra_args(row.is_argument());
  }
  return nullptr;
}

void AddRows(Command& command, CLI::App& app) {
  CLI::App* one_of = nullptr;
  for (OptionRow& row : command.rows) {
    if (!row.one_of.empty() && (one_of == nullptr || one_of->get_group() != row.one_of)) {
      one_of = app.add_option_group(row.one_of)->require_option(1);
    }
    AddOption(row, row.one_of.empty() ? app : *one_of)
        ->description(row.help)
        ->option_text(row.value)
        ->required(row.required)
        ->group(row.group);
  }
  for (const OptionRow& row : command.rows) {
    if (row.excludes.empty()) continue;
    app.get_option(row.name)->excludes(app.get_option(row.excludes));
  }
}

// Adds commands, which live as long as `app`; `chosen` becomes the one that is parsed.
void AddCommands(std::vector<Command>& commands, CLI::App& app, Command*& chosen) {
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  app.set_version_flag("-v,-V,--version", VersionText);
  for (Command& command : commands) {
    CLI::App* const added = app.add_subcommand(command.name, command.description);
    added->footer(command.footer)->group("Commands");
    added->callback([&] { chosen = &command; });
    if (command.in_python) {
      added->set_help_flag();
      added->prefix_command();  // any arguments
    } else {
      AddRows(command, *added);
    }
  }
  app.footer(
      "Exit codes: 0 ok, 1 a requested check failed, 2 usage, 3 bad or unsupported input,\n"
      "4 incomparable baseline, 70 internal error. dlsim help COMMAND shows options and examples.");
}

int Print(const std::string& text) {
  WriteOutput("-", text);
  return 0;
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
int ParseAndAct(CLI::App& app, const Command* const& chosen, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {
    std::ostringstream answer;
    app.exit(request, answer, answer);
    PrintHelp(answer.str());
    return 0;
  }
  CheckFileArguments(chosen->rows);
  CurrentCaller().command = CommandName(app);
  return chosen->run();
}

// What the command line asks for: what it prints of itself, or a command.
int RunLine(CLI::App& app, const Command* const& chosen, int argc, char** argv) {
  const std::string_view only = argc == 2 ? argv[1] : "";
  if (only == "--dump-options") return Print(OptionModel() + "\n");
  if (only == "--dump-results") return Print(ResultKeys());
  if (only == "--build-info") return Print(BuildInfoJson() + "\n");
  std::vector<char*> arguments = WithHelpAsOption(argc, argv);
  try {
    RequireCommand(app, argc, arguments.data());
    return ParseAndAct(app, chosen, argc, arguments.data());
  } catch (const CLI::ParseError& error) {
    throw UsageError("", MessageOf(app, error) + " (see " + CommandName(app) + " --help)");
  }
}

}  // namespace

int RunCommand(int argc, char** argv) {
  std::vector<Command> commands = Commands();
  CLI::App app("Simulates low-precision numerics and dynamic loss scaling on recorded gradients.",
               "dlsim");
  Command* chosen = nullptr;
  AddCommands(commands, app, chosen);
  return RunGuarded([&] {
    try {
      return RunLine(app, chosen, argc, argv);
    } catch (const std::exception&) {
      CurrentCaller().command = CommandName(app);
      throw;
    }
  });
}

}  // namespace dlsim::sim
