// SPDX-License-Identifier: Apache-2.0
// dlsim completion, man and help: what shells, man and users know of the commands.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/app/commands.h"
#include "sim/app/completion.h"
#include "sim/app/option_values.h"
#include "sim/base/output_file.h"
#include "sim/base/suggest.h"

namespace dlsim::sim {

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

void AddManCommand(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("man", "Print the man page");
  command->footer(
      "Examples:\n"
      "  dlsim man | man -l -\n"
      "  dlsim man > ~/.local/share/man/man1/dlsim.1");
  command->callback([&app, &action] {
    action = [&app] {
      WriteOutput("-", ManPage(app));
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
