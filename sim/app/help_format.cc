// SPDX-License-Identifier: Apache-2.0
#include "sim/app/help_format.h"

#include <set>

namespace dlsim::sim {
namespace {

std::string Named(const char* words, const std::set<CLI::Option*>& options) {
  // Of several, the others say it of this one.
  if (options.size() != 1) return "";
  return " (" + std::string(words) + " " + (*options.begin())->get_name() + ")";
}

}  // namespace

HelpFormatter::HelpFormatter() {
  label("Positionals", "Arguments");
  label("SUBCOMMAND", "COMMAND");
}

// Of a flag whose value may be left out, "--heat-map[=BINS]" instead of its default value.
std::string HelpFormatter::make_option_name(const CLI::Option* option, bool is_positional) const {
  const std::string name = CLI::Formatter::make_option_name(option, is_positional);
  return name.substr(0, name.find('{'));
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string text = option->get_option_text();
  if (option->get_positional()) return "";  // said by the usage
  if (!option->get_fnames().empty()) {
    text = "[=" + text + "]";
  } else if (!text.empty()) {
    text = " " + text;
  }
  const std::string excluded = text.empty() ? Named("not with", option->get_excludes()) : "";
  return text + (option->get_required() ? " (required)" : "") +
         Named("needs", option->get_needs()) + excluded;
}

std::string HelpFormatter::make_option_usage(const CLI::Option* option) const {
  if (!option->get_option_text().empty()) return option->get_option_text();
  const std::string name = make_option_name(option, true);
  const std::string text = option->get_expected_max() > 1 ? name + "..." : name;
  return option->get_required() ? text : "[" + text + "]";
}

// A group of options of which one is required.
std::string HelpFormatter::make_expanded(const CLI::App* group) const {
  const auto is_option = [group](const CLI::Option* option) {
    return option->nonpositional() && option != group->get_help_ptr();
  };
  return make_group(group->get_group() + " (exactly one is required)", false,
                    group->get_options(is_option));
}

}  // namespace dlsim::sim
