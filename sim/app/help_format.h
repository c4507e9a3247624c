// SPDX-License-Identifier: Apache-2.0
// How --help writes options, and the groups that they are in.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace dlsim::sim {

inline constexpr const char* kInputGroup = "Input";
inline constexpr const char* kTryGroup = "What to try";
inline constexpr const char* kEmulationGroup = "Emulation";
inline constexpr const char* kComputationGroup = "Computation";
inline constexpr const char* kOutputGroup = "Output";

// Says of an option whether it is required and which others it needs or excludes.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_usage(const CLI::Option* option) const override;
  std::string make_expanded(const CLI::App* group) const override;
};

}  // namespace dlsim::sim
