// SPDX-License-Identifier: Apache-2.0
// The names that an option or argument takes, for shell completion and `dlsim --dump-options`.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace CLI {
class Option;
}

namespace dlsim::sim {

// Remembers, as long as it exists, the names for the options of a command line that this thread
// declares.
class OfferedNames {
 public:
  OfferedNames();
  ~OfferedNames();
  OfferedNames(const OfferedNames&) = delete;
  OfferedNames& operator=(const OfferedNames&) = delete;

 private:
  friend CLI::Option* OfferValues(CLI::Option* option, std::vector<std::string> values);
  friend std::vector<std::string> OfferedValues(const CLI::Option* option);

  std::map<const CLI::Option*, std::vector<std::string>> of_;
  OfferedNames* before_;
};

// Remembers the names for an option where an OfferedNames exists; returns the option.
CLI::Option* OfferValues(CLI::Option* option, std::vector<std::string> values);

// Returns them; empty if any text or file may be given. What ends in '=' is the beginning of a
// value.
std::vector<std::string> OfferedValues(const CLI::Option* option);

// Return the names of number formats, of policies and "all", and of their parameters, as KEY=.
std::vector<std::string> FormatNames();
std::vector<std::string> FormatNamesAndScaled();  // and of those with scales of their own
std::vector<std::string> ScaledFormatNames();     // these alone
std::vector<std::string> PolicyNames();
std::vector<std::string> PolicyNamesAndAll();
std::vector<std::string> ParameterNames();

}  // namespace dlsim::sim
