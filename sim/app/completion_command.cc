// SPDX-License-Identifier: Apache-2.0
// dlsim completion, written from the options of every command.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/app/commands.h"
#include "sim/base/files.h"

namespace dlsim::sim {
namespace {

std::string Join(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// The options of a command that its help shows, --help first.
std::vector<OptionRow> OptionsOf(const Command& command) {
  std::vector<OptionRow> options = {
      {.name = "--help", .help = "Print this help message and exit", .takes = Takes::kNothing}};
  std::ranges::copy_if(command.rows, std::back_inserter(options), [](const OptionRow& row) {
    return !row.is_argument() && !row.group.empty();
  });
  return options;
}

// The words that a command takes first, or everywhere; empty: files.
struct Words {
  std::string words;
  bool everywhere = false;
};

Words ArgumentsOf(const Command& command) {
  const auto row = std::ranges::find_if(command.rows, &OptionRow::is_argument);
  if (row == command.rows.end()) return {};
  return {Join(row->names), row->takes == Takes::kSeveral};
}

// What may also be left out is not asked for.
bool TakesValue(const OptionRow& option) {
  return option.takes == Takes::kOne || option.takes == Takes::kSeveral;
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

// The cases of a bash script: what is offered, and for which patterns.
using Cases = std::map<std::string, std::vector<std::string>>;

std::string BashCases(const Cases& cases) {
  std::string text;
  for (const auto& [words, patterns] : cases) {
    text += fmt::format("    {}) words={} ;;\n", fmt::join(patterns, "|"), ShellQuoted(words));
  }
  return text;
}

std::string ZshOption(const OptionRow& option) {
  std::string spec = "*--" + option.long_name();
  if (!option.help.empty()) spec += "[" + Escape(option.help, "[]:") + "]";
  if (!TakesValue(option)) return spec;
  const std::string values = Join(option.names);
  if (values.empty()) return spec + ":value:_files";
  // No blank after what ends in '='.
  if (values.ends_with('=')) return spec + ":value:{compadd -S \"\" -- " + values + "}";
  return spec + ":value:(" + values + ")";
}

std::string BashCompletion(std::span<const Command> commands) {
  Cases values, options, words;  // by "COMMAND --OPTION", "COMMAND" and "COMMAND POSITION"
  std::string names;
  for (const Command& command : commands) {
    names += command.name + " ";
    std::string all;
    for (const OptionRow& option : OptionsOf(command)) {
      all += (all.empty() ? "--" : " --") + option.long_name();
      if (option.names.empty()) continue;
      values[Join(option.names)].push_back(ShellQuoted(command.name + " --" + option.long_name()));
    }
    options[all].push_back(ShellQuoted(command.name));
    const Words arguments = ArgumentsOf(command);
    if (arguments.words.empty()) continue;
    words[arguments.words].push_back(ShellQuoted(command.name) +
                                     (arguments.everywhere ? "\\ *" : "\\ 2"));
  }
  // Bash takes '=' as a word of its own: --policy=torch.
  return "# bash completion of dlsim\n_dlsim() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
         "  local command=${COMP_WORDS[1]} words=\n"
         "  if [[ $cur == = ]]; then cur=\n"
         "  elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words=" +
         ShellQuoted(names + "--help --version") + "\n  else case \"$command $prev\" in\n" +
         BashCases(values) + "    *) if [[ $cur == -* ]]; then case $command in\n" +
         BashCases(options) + "    esac; else case \"$command $COMP_CWORD\" in\n" +
         BashCases(words) +
         "    esac; fi ;;\n  esac; fi\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "  if [[ ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2> /dev/null; fi\n}\n"
         "complete -o bashdefault -o default -F _dlsim dlsim\n";
}

std::string ZshCompletion(std::span<const Command> commands) {
  std::string names, cases;
  for (const Command& command : commands) {
    names += "    " + ShellQuoted(command.name + ":" + Escape(command.description, ":")) + "\n";
    cases += "    " + command.name + ") _arguments";
    const auto [words, everywhere] = ArgumentsOf(command);
    if (!words.empty() && !everywhere) {
      cases += " \\\n      " + ShellQuoted("1:argument:(" + words + ")");
    }
    for (const OptionRow& option : OptionsOf(command)) {
      cases += " \\\n      " + ShellQuoted(ZshOption(option));
    }
    const bool all = !words.empty() && everywhere;
    cases +=
        " \\\n      " + ShellQuoted(all ? "*:argument:(" + words + ")" : "*:file:_files") + " ;;\n";
  }
  return "#compdef dlsim\n_dlsim() {\n  local -a commands\n  commands=(\n" + names +
         "  )\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
         "  local command=$words[2]\n  shift words; (( CURRENT-- ))\n  case $command in\n" +
         cases + "  esac\n}\ncompdef _dlsim dlsim\n";
}

std::string FishCompletion(std::span<const Command> commands) {
  std::string script = "# fish completion of dlsim\n";
  for (const Command& command : commands) {
    script += fmt::format("complete -c dlsim -f -n __fish_use_subcommand -a {} -d {}\n",
                          command.name, ShellQuoted(command.description));
    const std::string chosen = "__fish_seen_subcommand_from " + command.name;
    for (const OptionRow& option : OptionsOf(command)) {
      script += "complete -c dlsim -n " + ShellQuoted(chosen) + " -l " + option.long_name();
      if (TakesValue(option)) {
        script += option.names.empty() ? " -r" : " -x -a " + ShellQuoted(Join(option.names));
      }
      if (!option.help.empty()) script += " -d " + ShellQuoted(option.help);
      script += "\n";
    }
    const std::string words = ArgumentsOf(command).words;
    if (words.empty()) continue;
    script +=
        fmt::format("complete -c dlsim -f -n {} -a {}\n", ShellQuoted(chosen), ShellQuoted(words));
  }
  return script;
}

using Script = std::string (*)(std::span<const Command> commands);

struct CompletionOptions {
  Script script = nullptr;

  void Visit(OptionRows& option) {
    option
        .Choice<Script>(
            "SHELL", script,
            {{"bash", BashCompletion}, {"zsh", ZshCompletion}, {"fish", FishCompletion}}, "",
            "bash, zsh or fish")
        .required = true;
  }
};

int RunCompletion(const CompletionOptions& options) {
  WriteOutput("-", options.script(Commands()));
  return 0;
}

}  // namespace

Command CompletionCommand() {
  return MakeCommand<CompletionOptions>(
      RunCompletion, "completion", "Print completion for bash, zsh or fish",
      "Examples:\n"
      "  source <(dlsim completion bash)\n"
      "  dlsim completion zsh > ~/.zfunc/_dlsim\n"
      "  dlsim completion fish > ~/.config/fish/completions/dlsim.fish");
}

}  // namespace dlsim::sim
