// SPDX-License-Identifier: Apache-2.0
// Shell completion and the man page, written from the options of every command.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace dlsim::sim {

// Return a script for the shell: `source <(dlsim completion bash)`.
std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);
std::string FishCompletion(const CLI::App& app);

// Returns the page dlsim(1) as troff.
std::string ManPage(const CLI::App& app);

}  // namespace dlsim::sim
