// SPDX-License-Identifier: Apache-2.0
#include "sim/app/option_values.h"

#include <map>
#include <set>
#include <utility>

#include "dlsim/format.h"
#include "dlsim/sim/policies.h"

namespace dlsim::sim {
namespace {

// Commands may be called on several threads at once.
std::map<const CLI::Option*, std::vector<std::string>>& ValuesOfOptions() {
  static thread_local std::map<const CLI::Option*, std::vector<std::string>> values;
  return values;
}

}  // namespace

void ForgetOfferedValues() { ValuesOfOptions().clear(); }

CLI::Option* OfferValues(CLI::Option* option, std::vector<std::string> values) {
  ValuesOfOptions()[option] = std::move(values);
  return option;
}

std::vector<std::string> OfferedValues(const CLI::Option* option) {
  const auto found = ValuesOfOptions().find(option);
  return found == ValuesOfOptions().end() ? std::vector<std::string>() : found->second;
}

std::vector<std::string> FormatNames() {
  std::vector<std::string> names;
  for (const FormatRow& row : kFormats) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const PolicyInfo& policy : Policies()) names.emplace_back(policy.name);
  return names;
}

std::vector<std::string> PolicyNamesAndAll() {
  std::vector<std::string> names = PolicyNames();
  names.emplace_back("all");
  return names;
}

std::vector<std::string> ParameterNames() {
  std::set<std::string> keys;
  for (const PolicyInfo& policy : Policies()) {
    for (const ParameterInfo& parameter : policy.parameters) {
      keys.insert(std::string(parameter.name) + "=");
    }
  }
  return {keys.begin(), keys.end()};
}

}  // namespace dlsim::sim
