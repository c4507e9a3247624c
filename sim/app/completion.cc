// SPDX-License-Identifier: Apache-2.0
#include "sim/app/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "dlsim/format.h"
#include "dlsim/sim/policies.h"
#include "sim/config/training_config.h"

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

std::vector<const CLI::Option*> OptionsOf(const CLI::App& command) {
  std::vector<const CLI::Option*> options;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_lnames().empty() && !option->get_group().empty()) options.push_back(option);
  }
  return options;
}

std::string LongName(const CLI::Option& option) { return option.get_lnames().front(); }

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// The values of an option that has names; of others files are offered.
std::vector<std::string> ValuesOf(std::string_view name) {
  std::vector<std::string> values;
  if (name == "policy") {
    for (const PolicyInfo& policy : Policies()) values.emplace_back(policy.name);
  } else if (name == "format") {
    for (const FormatRow& row : kFormats) values.emplace_back(row.name);
  } else if (name == "config-kind") {
    values.assign(ConfigKinds().begin(), ConfigKinds().end());
  }
  return values;
}

constexpr std::string_view kNamed[] = {"policy", "format", "config-kind"};

// The long options of a command and of its own commands, and the names of these.
std::vector<std::string> WordsOf(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::App* inner : CommandsOf(command)) {
    words.push_back(inner->get_name());
    for (const CLI::Option* option : OptionsOf(*inner)) words.push_back("--" + LongName(*option));
  }
  for (const CLI::Option* option : OptionsOf(command)) words.push_back("--" + LongName(*option));
  return words;
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

// A hyphen as it is typed; a line must not begin with a request.
std::string Troff(std::string_view text) {
  std::string page;
  for (const char c : text) {
    if (page.empty() && (c == '.' || c == '\'')) page += "\\&";
    page += c == '-' ? "\\-" : c == '\\' ? "\\e" : c == '\n' ? "\n.br\n" : std::string(1, c);
  }
  return page;
}

std::string ManOptions(const CLI::App& command) {
  std::string text;
  for (const CLI::Option* option : OptionsOf(command)) {
    const std::string value = TakesValue(*option) ? " " + option->get_option_text() : "";
    text += ".TP\n.B " + Troff("--" + LongName(*option) + value) + "\n" +
            Troff(option->get_description()) + "\n";
  }
  return text;
}

void AddManCommands(const CLI::App& app, const std::string& prefix, std::string& page) {
  for (const CLI::App* command : CommandsOf(app)) {
    const std::string name = prefix + " " + command->get_name();
    page += ".SH " + Troff(name) + "\n" + Troff(command->get_description()) + "\n";
    page += ManOptions(*command);
    AddManCommands(*command, name, page);
  }
}

std::string Names(const std::vector<const CLI::App*>& commands) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return Join(names);
}

// The options of a command, and each of its own commands' once.
std::vector<const CLI::Option*> AllOptionsOf(const CLI::App& command) {
  std::vector<const CLI::Option*> options = OptionsOf(command);
  for (const CLI::App* inner : CommandsOf(command)) {
    for (const CLI::Option* option : OptionsOf(*inner)) {
      const auto same = [&](const CLI::Option* other) {
        return LongName(*other) == LongName(*option);
      };
      if (std::ranges::none_of(options, same)) options.push_back(option);
    }
  }
  return options;
}

std::string FishOption(const CLI::Option& option, const std::string& chosen) {
  const std::vector<std::string> values = ValuesOf(LongName(option));
  std::string line = "complete -c dlsim -n " + ShellQuoted(chosen) + " -l " + LongName(option);
  if (TakesValue(option)) line += values.empty() ? " -r" : " -x -a " + ShellQuoted(Join(values));
  return line + " -d " + ShellQuoted(option.get_description()) + "\n";
}

// The commands of one level, offered where `open` holds; `before` holds where they can be chosen.
void AddFishCommands(const CLI::App& app, const std::string& open, const std::string& before,
                     std::string& script) {
  for (const CLI::App* command : CommandsOf(app)) {
    script += fmt::format("complete -c dlsim -f -n {} -a {} -d {}\n", ShellQuoted(open),
                          command->get_name(), ShellQuoted(command->get_description()));
    const std::string chosen = before + "__fish_seen_subcommand_from " + command->get_name();
    for (const CLI::Option* option : OptionsOf(*command)) script += FishOption(*option, chosen);
    const std::vector<const CLI::App*> inner = CommandsOf(*command);
    if (inner.empty()) continue;
    AddFishCommands(*command, chosen + "; and not __fish_seen_subcommand_from " + Names(inner),
                    chosen + "; and ", script);
  }
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  std::vector<std::string> names;
  std::string options, values;
  for (const CLI::App* command : CommandsOf(app)) {
    names.push_back(command->get_name());
    options += fmt::format("    {}) words={} ;;\n", command->get_name(),
                           ShellQuoted(Join(WordsOf(*command))));
  }
  for (const std::string_view name : kNamed) {
    values += fmt::format("    --{}) words={} ;;\n", name, ShellQuoted(Join(ValuesOf(name))));
  }
  return "# bash completion of dlsim\n_dlsim() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words=" +
         ShellQuoted(Join(names) + " --help --version") + "\n  else case $prev in\n" + values +
         "    *) if [[ $cur == -* || ${COMP_WORDS[1]} == bench ]]; then case ${COMP_WORDS[1]} "
         "in\n" +
         options +
         "    esac; fi ;;\n  esac; fi\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\n"
         "complete -o bashdefault -o default -F _dlsim dlsim\n";
}

std::string ZshCompletion(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* command : CommandsOf(app)) {
    names += "    " +
             ShellQuoted(command->get_name() + ":" + Escape(command->get_description(), ":")) +
             "\n";
    cases += "    " + command->get_name() + ") _arguments";
    const std::vector<const CLI::App*> inner = CommandsOf(*command);
    if (!inner.empty()) cases += " \\\n      " + ShellQuoted("1:command:(" + Names(inner) + ")");
    for (const CLI::Option* option : AllOptionsOf(*command)) {
      std::string spec =
          "*--" + LongName(*option) + "[" + Escape(option->get_description(), "[]:") + "]";
      const std::vector<std::string> values = ValuesOf(LongName(*option));
      if (TakesValue(*option)) {
        spec += ":value:" + (values.empty() ? "_files" : "(" + Join(values) + ")");
      }
      cases += " \\\n      " + ShellQuoted(spec);
    }
    cases += " \\\n      '*:file:_files' ;;\n";
  }
  return "#compdef dlsim\n_dlsim() {\n  local -a commands\n  commands=(\n" + names +
         "  )\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
         "  local command=$words[2]\n  shift words; (( CURRENT-- ))\n  case $command in\n" +
         cases + "  esac\n}\ncompdef _dlsim dlsim\n";
}

std::string FishCompletion(const CLI::App& app) {
  std::string script = "# fish completion of dlsim\n";
  AddFishCommands(app, "__fish_use_subcommand", "", script);
  return script;
}

std::string ManPage(const CLI::App& app) {
  std::string page = ".TH DLSIM 1 \"\" \"dlsim " DLSIM_VERSION "\"\n.SH NAME\ndlsim \\- " +
                     Troff(app.get_description()) + "\n.SH SYNOPSIS\n.B dlsim\n.I COMMAND\n[" +
                     "\\fIOPTION\\fR]...\n";
  AddManCommands(app, "dlsim", page);
  return page + ".SH EXIT STATUS\n" + Troff(app.get_footer()) + "\n";
}

}  // namespace dlsim::sim
