// SPDX-License-Identifier: Apache-2.0
// The options of every command as JSON, for what is generated from them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace dlsim::sim {

// Returns what `dlsim --dump-options` prints: of each command the long options in their order, each
// with its help, the placeholder of its value (null for a flag), the names that the value may be
// (empty: any text), and whether the value may be left out, the option given several times, or is
// not in the help.
std::string OptionModel(const CLI::App& app);

}  // namespace dlsim::sim
