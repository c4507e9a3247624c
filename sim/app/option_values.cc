// SPDX-License-Identifier: Apache-2.0
#include "sim/app/option_values.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "dlsim/format.h"
#include "dlsim/scaled_format.h"
#include "dlsim/sim/policies.h"

namespace dlsim::sim {
namespace {

// Commands may run on several threads at once. A plain pointer: what needs a destructor in each
// thread would end the process where memory is short.
thread_local OfferedNames* current = nullptr;

}  // namespace

OfferedNames::OfferedNames() : before_(std::exchange(current, this)) {}

OfferedNames::~OfferedNames() { current = before_; }

CLI::Option* OfferValues(CLI::Option* option, std::vector<std::string> values) {
  if (current != nullptr) current->of_[option] = std::move(values);
  return option;
}

std::vector<std::string> OfferedValues(const CLI::Option* option) {
  if (current == nullptr) return {};
  const auto found = current->of_.find(option);
  return found == current->of_.end() ? std::vector<std::string>() : found->second;
}

std::vector<std::string> FormatNames() {
  std::vector<std::string> names;
  for (const FormatRow& row : kFormats) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> FormatNamesAndScaled() {
  std::vector<std::string> names = FormatNames();
  std::ranges::move(ScaledFormatNames(), std::back_inserter(names));
  return names;
}

std::vector<std::string> ScaledFormatNames() {
  std::vector<std::string> names;
  for (const ScaledFormat& row : kScaledFormats) names.emplace_back(row.name);
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
