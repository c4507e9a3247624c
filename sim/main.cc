// SPDX-License-Identifier: Apache-2.0
// The dlsim command.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "dlsim/error.h"
#include "sim/commands/commands.h"

namespace dlsim {
namespace {

// Prints one line on standard error and returns the exit code.
int Fail(const std::string& command, const char* message, ErrorKind kind) {
  std::fprintf(stderr, "%s: %s\n", command.c_str(), message);
  return static_cast<int>(kind);
}

// "dlsim replay" once the subcommand is known.
std::string CommandName(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? "dlsim" : "dlsim " + chosen.front()->get_name();
}

void AddCommands(CLI::App& app, Action& action) {
  app.require_subcommand(1);
  app.set_version_flag("--version", "dlsim " DLSIM_VERSION);
  AddReplayCommand(app, action);
  AddInfoCommand(app, action);
  AddScalerCommand(app, action);
  AddConvertCommand(app, action);
  AddFormatsCommand(app, action);
  app.footer(
      "Exit codes: 0 ok, 1 a requested check failed, 2 usage, 3 bad or unsupported input,\n"
      "4 incomparable baseline, 70 internal error. dlsim COMMAND --help shows examples.");
}

int Main(int argc, char** argv) {
  CLI::App app("Simulates low-precision numerics and dynamic loss scaling on recorded gradients.",
               "dlsim");
  Action action;
  AddCommands(app, action);
  try {
    app.parse(argc, argv);
    return action();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const std::string message =
        std::string(error.what()) + " (see " + CommandName(app) + " --help)";
    return Fail(CommandName(app), message.c_str(), ErrorKind::kUsage);
  } catch (const Error& error) {
    return Fail(CommandName(app), error.what(), error.kind());
  } catch (const std::bad_alloc&) {
    return Fail(CommandName(app), "out of memory", ErrorKind::kInternal);
  } catch (const std::exception& error) {
    return Fail(CommandName(app), error.what(), ErrorKind::kInternal);
  }
}

}  // namespace
}  // namespace dlsim

int main(int argc, char** argv) { return dlsim::Main(argc, argv); }
