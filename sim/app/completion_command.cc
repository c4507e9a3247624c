// SPDX-License-Identifier: Apache-2.0
// dlsim completion, written from the options of every command, and dlsim help.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/app/commands.h"
#include "sim/app/option_values.h"
#include "sim/base/output_file.h"
#include "sim/base/suggest.h"

namespace dlsim::sim {
namespace {

std::string Join(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// The commands that are shown, those of the Python package too.
std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  std::vector<const CLI::App*> commands;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (!command->get_name().empty()) commands.push_back(command);
  }
  return commands;
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : CommandsOf(app)) names.push_back(command->get_name());
  return names;
}

// A long option as shells complete it.
struct Completed {
  std::string name, description;
  bool takes_value = false;
  std::vector<std::string> values;  // empty: files
};

std::vector<Completed> OptionsOf(const CLI::App& command) {
  std::vector<Completed> options;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty() || option->get_group().empty()) continue;
    options.push_back({option->get_lnames().front(), option->get_description(),
                       option->get_items_expected_max() > 0, OfferedValues(option)});
  }
  for (const PythonOption& option : PythonOptions(command.get_name())) {
    const CLI::Option* const same =
        command.get_parent()->get_subcommand("replay")->get_option_no_throw("--" + option.name);
    options.push_back({.name = option.name,
                       .description = "",
                       .takes_value = option.takes_value,
                       .values = OfferedValues(same)});
  }
  return options;
}

// The words that a command takes first, or everywhere; empty: files.
struct Words {
  std::vector<std::string> words;
  bool everywhere = false;
};

Words ArgumentsOf(const CLI::App& command) {
  if (const std::vector<std::string> inner = CommandNames(command); !inner.empty()) return {inner};
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) continue;
    return {OfferedValues(option), option->get_items_expected_max() > 1};
  }
  return {.words = PythonArguments(command.get_name())};
}

// Puts a backslash before each of `special`.
std::string Escape(std::string_view text, std::string_view special) {
  std::string escaped;
  for (const char c : text) {
    if (special.find(c) != special.npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// In single quotes, in which a shell knows no escape.
std::string ShellQuoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string FishOption(const Completed& option, const std::string& chosen) {
  std::string line = "complete -c dlsim -n " + ShellQuoted(chosen) + " -l " + option.name;
  if (option.takes_value) {
    line += option.values.empty() ? " -r" : " -x -a " + ShellQuoted(Join(option.values));
  }
  if (!option.description.empty()) line += " -d " + ShellQuoted(option.description);
  return line + "\n";
}

// The cases of a bash script: what is offered, and for which patterns.
using Cases = std::map<std::string, std::vector<std::string>>;

std::string BashCases(const Cases& cases) {
  std::string text;
  for (const auto& [words, patterns] : cases) {
    text += fmt::format("    {}) words={} ;;\n", fmt::join(patterns, "|"), ShellQuoted(words));
  }
  return text;
}

// `values` by "COMMAND --OPTION", `options` by "COMMAND", `words` by "COMMAND POSITION".
struct BashWords {
  Cases values, options, words;
};

void AddBashCommands(const CLI::App& app, BashWords& all) {
  for (const CLI::App* command : CommandsOf(app)) {
    const std::string& name = command->get_name();
    std::string options;
    for (const Completed& option : OptionsOf(*command)) {
      options += (options.empty() ? "--" : " --") + option.name;
      if (!option.values.empty()) {
        all.values[Join(option.values)].push_back(ShellQuoted(name + " --" + option.name));
      }
    }
    if (!options.empty()) all.options[options].push_back(ShellQuoted(name));
    const Words arguments = ArgumentsOf(*command);
    if (!arguments.words.empty()) {
      all.words[Join(arguments.words)].push_back(ShellQuoted(name) +
                                                 (arguments.everywhere ? "\\ *" : "\\ 2"));
    }
  }
}

std::string ZshOption(const Completed& option) {
  std::string spec = "*--" + option.name;
  if (!option.description.empty()) spec += "[" + Escape(option.description, "[]:") + "]";
  if (!option.takes_value) return spec;
  const std::string values = Join(option.values);
  if (values.empty()) return spec + ":value:_files";
  // No blank after what ends in '='.
  if (values.ends_with('=')) return spec + ":value:{compadd -S \"\" -- " + values + "}";
  return spec + ":value:(" + values + ")";
}

std::string BashCompletion(const CLI::App& app) {
  BashWords all;
  AddBashCommands(app, all);
  // Bash takes '=' as a word of its own: --policy=torch.
  return "# bash completion of dlsim\n_dlsim() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
         "  local command=${COMP_WORDS[1]} words=\n"
         "  if [[ $cur == = ]]; then cur=\n"
         "  elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words=" +
         ShellQuoted(Join(CommandNames(app)) + " --help --version") +
         "\n  else case \"$command $prev\" in\n" + BashCases(all.values) +
         "    *) if [[ $cur == -* ]]; then case $command in\n" + BashCases(all.options) +
         "    esac; else case \"$command $COMP_CWORD\" in\n" + BashCases(all.words) +
         "    esac; fi ;;\n  esac; fi\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "  if [[ ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2> /dev/null; fi\n}\n"
         "complete -o bashdefault -o default -F _dlsim dlsim\n";
}

std::string ZshCompletion(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* command : CommandsOf(app)) {
    names += "    " +
             ShellQuoted(command->get_name() + ":" + Escape(command->get_description(), ":")) +
             "\n";
    cases += "    " + command->get_name() + ") _arguments";
    const Words arguments = ArgumentsOf(*command);
    const std::string words = Join(arguments.words);
    if (!words.empty() && !arguments.everywhere) {
      cases += " \\\n      " + ShellQuoted("1:argument:(" + words + ")");
    }
    for (const Completed& option : OptionsOf(*command)) {
      cases += " \\\n      " + ShellQuoted(ZshOption(option));
    }
    const bool everywhere = !words.empty() && arguments.everywhere;
    cases += " \\\n      " +
             ShellQuoted(everywhere ? "*:argument:(" + words + ")" : "*:file:_files") + " ;;\n";
  }
  return "#compdef dlsim\n_dlsim() {\n  local -a commands\n  commands=(\n" + names +
         "  )\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
         "  local command=$words[2]\n  shift words; (( CURRENT-- ))\n  case $command in\n" +
         cases + "  esac\n}\ncompdef _dlsim dlsim\n";
}

std::string FishCompletion(const CLI::App& app) {
  std::string script = "# fish completion of dlsim\n";
  for (const CLI::App* command : CommandsOf(app)) {
    script += fmt::format("complete -c dlsim -f -n __fish_use_subcommand -a {} -d {}\n",
                          command->get_name(), ShellQuoted(command->get_description()));
    const std::string chosen = "__fish_seen_subcommand_from " + command->get_name();
    for (const Completed& option : OptionsOf(*command)) script += FishOption(option, chosen);
    const std::string words = Join(ArgumentsOf(*command).words);
    if (words.empty()) continue;
    script +=
        fmt::format("complete -c dlsim -f -n {} -a {}\n", ShellQuoted(chosen), ShellQuoted(words));
  }
  return script;
}

}  // namespace

void AddCompletionCommand(CLI::App& app, Action& action) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Print completion for bash, zsh or fish");
  OfferValues(command->add_option("SHELL", *shell, "bash, zsh or fish"), {"bash", "zsh", "fish"})
      ->required();
  command->footer(
      "Examples:\n"
      "  source <(dlsim completion bash)\n"
      "  dlsim completion zsh > ~/.zfunc/_dlsim\n"
      "  dlsim completion fish > ~/.config/fish/completions/dlsim.fish");
  command->callback([shell, &app, &action] {
    action = [shell, &app] {
      const size_t chosen = ParseChoice("SHELL", *shell, {"bash", "zsh", "fish"});
      WriteOutput("-", chosen == 0   ? BashCompletion(app)
                       : chosen == 1 ? ZshCompletion(app)
                                     : FishCompletion(app));
      return 0;
    };
  });
}

void AddHelpCommand(CLI::App& app, Action& /*action*/) {
  CLI::App* command = app.add_subcommand("help", "Show the options and examples of a command");
  std::vector<std::string> names;
  for (const CLI::App* other : app.get_subcommands(nullptr)) names.push_back(other->get_name());
  OfferValues(command->add_option("COMMAND", "The command (default: list all)"), std::move(names))
      ->expected(0, 2);
  command->footer(
      "Examples:\n"
      "  dlsim help replay");
}

}  // namespace dlsim::sim
