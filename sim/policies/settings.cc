// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/settings.h"

#include <cassert>
#include <cmath>

#include "dlsim/error.h"
#include "sim/base/number.h"

namespace dlsim::sim {
namespace {

std::string Place(const Settings& settings, std::string_view name) {
  return std::string(settings.policy).append(".").append(name);
}

}  // namespace

std::string Settings::Text(std::string_view name) const {
  if (const auto found = given.find(name); found != given.end()) return found->second;
  for (const ParameterInfo& info : table) {
    if (info.name == name) return std::string(info.default_text);
  }
  assert(false && "the policy reads a parameter that its table lacks");
  return "";
}

double Settings::Number(std::string_view name) const {
  return ParseNumber(Text(name), Place(*this, name));
}

int64_t Settings::Integer(std::string_view name) const {
  return ParseInteger(Text(name), Place(*this, name));
}

bool Settings::Bool(std::string_view name) const {
  return ParseBool(Text(name), Place(*this, name));
}

float Settings::StaticScale(std::string_view name) const {
  const float scale = static_cast<float>(Number(name));
  if (scale > 0 && std::isfinite(scale)) return scale;
  throw UsageError(Place(*this, name), "not a loss scale", "a positive float32 number",
                   Quoted(Text(name)));
}

}  // namespace dlsim::sim
