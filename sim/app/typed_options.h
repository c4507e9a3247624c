// SPDX-License-Identifier: Apache-2.0
// Options whose value is one of several names, or a count, with the errors of dlsim; --threads.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/enum_names.h"
#include "sim/app/option_values.h"
#include "sim/base/suggest.h"

namespace dlsim::sim {

// Adds an option that assigns to `target` the value of the given name. `placeholder` stands for the
// name in the help.
template <class T, class Target>
void AddChoice(CLI::App& command, const std::string& option, Target& target,
               const std::vector<std::pair<std::string_view, T>>& choices,
               const std::string& placeholder, const std::string& help) {
  const auto assign = [option, &target, choices](const std::string& text) {
    std::vector<std::string_view> names;
    for (const auto& choice : choices) names.push_back(choice.first);
    target = choices[ParseChoice(option, text, names)].second;
  };
  std::vector<std::string> offered;
  for (const auto& choice : choices) offered.emplace_back(choice.first);
  OfferValues(command.add_option_function<std::string>(option, assign, help), std::move(offered))
      ->option_text(placeholder);
}

// The same for an enum, under its own names.
template <NamedEnum E, class Target>
void AddChoice(CLI::App& command, const std::string& option, Target& target,
               const std::string& placeholder, const std::string& help) {
  const auto assign = [option, &target](const std::string& text) {
    target = ParseNamed<E>(option, text);
  };
  const auto names = NamesOf<E>();
  OfferValues(command.add_option_function<std::string>(option, assign, help),
              {names.begin(), names.end()})
      ->option_text(placeholder);
}

// Adds an option that is an integer of 0 or more, written N in the help.
void AddCount(CLI::App& command, const std::string& option, uint64_t& target,
              const std::string& help);

// The same for an integer of 1 or more.
void AddPositive(CLI::App& command, const std::string& option, std::optional<uint64_t>& target,
                 const std::string& help);

// Adds --threads, which takes effect when the command line is parsed.
void AddThreadsOption(CLI::App& command);

}  // namespace dlsim::sim
