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

// The same for options that take number formats, policies, and parameters of policies: KEY=VALUE.
CLI::Option* OfferFormats(CLI::Option* option);
CLI::Option* OfferPolicies(CLI::Option* option, const std::vector<std::string>& more = {});
CLI::Option* OfferParameters(CLI::Option* option);

}  // namespace dlsim::sim
