// SPDX-License-Identifier: Apache-2.0
// The subcommands of dlsim. Each adds its options to the application; when the command line asks
// for it, it runs and returns the exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace dlsim::sim {

// Set by the subcommand that was chosen.
using Action = std::function<int()>;

void AddFormatsCommand(CLI::App& app, Action& action);
void AddInfoCommand(CLI::App& app, Action& action);
void AddConvertCommand(CLI::App& app, Action& action);
void AddScalerCommand(CLI::App& app, Action& action);
void AddProfileCommand(CLI::App& app, Action& action);
void AddMergeCommand(CLI::App& app, Action& action);
void AddJoinShardsCommand(CLI::App& app, Action& action);
void AddReplayCommand(CLI::App& app, Action& action);
void AddDiffCommand(CLI::App& app, Action& action);
void AddSweepCommand(CLI::App& app, Action& action);
void AddSummariesCommand(CLI::App& app, Action& action);
void AddAccumulateCommand(CLI::App& app, Action& action);
void AddTuneCommand(CLI::App& app, Action& action);
void AddExplainCommand(CLI::App& app, Action& action);
void AddCompletionCommand(CLI::App& app, Action& action);
void AddManCommand(CLI::App& app, Action& action);
void AddHelpCommand(CLI::App& app);  // its work is done before the command line is parsed
void AddPythonCommands(CLI::App& app, Action& action);

}  // namespace dlsim::sim
