// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/policy.h"

#include <cassert>
#include <cmath>
#include <limits>
#include <string>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/base/quantity.h"
#include "sim/policies/policies.h"

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

void NoteDeadStart(std::string_view name, double scale, std::vector<std::string>& notes) {
  if (scale == 0) {
    notes.push_back(
        std::string(name).append(" 0 is taken as it is, not as the default: the scale stays 0"));
  } else if (!std::isfinite(scale)) {
    notes.push_back(std::string(name).append(" is infinite as float32 and can never come back"));
  }
}

void NoteZero(std::optional<int64_t> overflows, std::vector<std::string>& notes) {
  if (!overflows) return;
  notes.push_back(std::to_string(*overflows) +
                  " overflows in a row make the scale 0, which never grows again");
}

void NoteDivisor(std::string_view name, double factor, std::vector<std::string>& notes) {
  if (factor > 1) return;
  notes.push_back(
      std::string(name).append(factor < 0 ? " below 0: the scale changes its sign"
                                          : " of 1 or less: an overflow does not lower the scale"));
}

void NoteInfinity(std::optional<int64_t> clean_steps, std::vector<std::string>& notes) {
  if (!clean_steps) return;
  notes.push_back(std::to_string(*clean_steps) +
                  " clean steps make the scale infinite, and it can never come back");
}

void NoteNoCeiling(std::optional<int64_t> clean_steps, std::vector<std::string>& notes) {
  if (clean_steps) {
    NoteInfinity(clean_steps, notes);
  } else {
    notes.push_back("no ceiling: the scale can grow to infinity, and it can never come back");
  }
}

void NoteCeiling(std::string_view name, double ceiling, std::optional<int64_t> clean_steps,
                 std::vector<std::string>& notes) {
  if (!clean_steps || IsPowerOfTwo(ceiling)) return;
  notes.push_back(std::to_string(*clean_steps) + " clean steps bring the scale to " +
                  std::string(name) + ", not a power of two: neither are later scales");
}

namespace {

using enum ParameterRole;

const std::vector<ParameterInfo>& StaticScaleParameters() {
  static const std::vector<ParameterInfo> kParameters = {
      {"loss_scale", {"loss_scaling_factor"}, "1", "the loss scale, as float32", kStart},
  };
  return kParameters;
}

ConfiguredScaler MakeStaticScale(const ParameterMap& given, std::string_view) {
  const Settings settings{"static", StaticScaleParameters(), given};
  const float scale = settings.StaticScale("loss_scale");
  return {.scaler = LossScaler::Make<StaticScale>({scale}),
          .parameters = {{"loss_scale", double{scale}}},
          .notes = {}};
}

}  // namespace

PolicyInfo StaticPolicy() {
  return {.name = "static",
          .aliases = {},
          .summary = "a constant loss scale; no step is ever skipped",
          .rules = {.finite_test = FiniteTest::kElementwise},
          .parameters = StaticScaleParameters(),
          .make = MakeStaticScale,
          .checkpoint = CheckpointContent::kNothing};
}

}  // namespace dlsim::sim
