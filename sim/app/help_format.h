// SPDX-License-Identifier: Apache-2.0
// How --help writes options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace dlsim::sim {

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
