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

CLI::Option* OfferFormats(CLI::Option* option) {
  std::vector<std::string> names;
  for (const FormatRow& row : kFormats) names.emplace_back(row.name);
  return OfferValues(option, std::move(names));
}

CLI::Option* OfferPolicies(CLI::Option* option, const std::vector<std::string>& more) {
  std::vector<std::string> names;
  for (const PolicyInfo& policy : Policies()) names.emplace_back(policy.name);
  names.insert(names.end(), more.begin(), more.end());
  return OfferValues(option, std::move(names));
}

CLI::Option* OfferParameters(CLI::Option* option) {
  std::set<std::string> keys;
  for (const PolicyInfo& policy : Policies()) {
    for (const ParameterInfo& parameter : policy.parameters) {
      keys.insert(std::string(parameter.name) + "=");
    }
  }
  return OfferValues(option, {keys.begin(), keys.end()});
}

}  // namespace dlsim::sim
