// SPDX-License-Identifier: Apache-2.0
// The names that an option or argument takes, for shell completion and `dlsim --dump-options`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace dlsim::sim {

// Remembers the names for an option, until this thread forgets those of all; returns the option.
CLI::Option* OfferValues(CLI::Option* option, std::vector<std::string> values);

void ForgetOfferedValues();

// Returns them; empty if any text or file may be given. What ends in '=' is the beginning of a
// value.
std::vector<std::string> OfferedValues(const CLI::Option* option);

// Return the names of number formats, of policies and "all", and of their parameters, as KEY=.
std::vector<std::string> FormatNames();
std::vector<std::string> PolicyNames();
std::vector<std::string> PolicyNamesAndAll();
std::vector<std::string> ParameterNames();

}  // namespace dlsim::sim
