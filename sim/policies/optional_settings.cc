// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/optional_settings.h"

#include <limits>
#include <string>

#include "dlsim/error.h"

namespace dlsim::sim {

std::optional<double> OptionalNumber(const Settings& settings, std::string_view name) {
  const std::string text = settings.Text(name);
  if (text == "none" || text == "None" || text == "null") return std::nullopt;
  return settings.Number(name);
}

NamedValue OptionalValue(std::string_view name, std::optional<double> value) {
  if (value) return {std::string(name), *value};
  return {std::string(name), "none"};
}

int32_t Int32(const Settings& settings, std::string_view name) {
  const int64_t value = settings.Integer(name);
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    throw UsageError(std::string(settings.policy).append(".").append(name), "out of range",
                     "a number that int32 can hold", Quoted(settings.Text(name)));
  }
  return static_cast<int32_t>(value);
}

}  // namespace dlsim::sim
