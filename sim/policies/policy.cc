// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/policy.h"

#include <cassert>
#include <cmath>
#include <string>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/base/quantity.h"

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

std::optional<double> Settings::OptionalNumber(std::string_view name) const {
  const std::string text = Text(name);
  if (text == "none" || text == "None" || text == "null") return std::nullopt;
  return Number(name);
}

float Settings::StaticScale(std::string_view name) const {
  const float scale = static_cast<float>(Number(name));
  if (scale > 0 && std::isfinite(scale)) return scale;
  Refuse(name, "not a loss scale", "a positive float32 number");
}

void Settings::Refuse(std::string_view name, std::string_view problem,
                      std::string_view expected) const {
  throw UsageError(Place(*this, name), problem, expected, Quoted(Text(name)));
}

void Settings::RequirePositive(std::string_view name, double value) const {
  if (!(value > 0)) Refuse(name, "not a loss scale", "a positive number");
}

void Settings::RequireCount(std::string_view name, int64_t value) const {
  constexpr int64_t kLimit = int64_t{1} << 53;
  if (value < -kLimit || value > kLimit) Refuse(name, "out of range", "at most 2^53 either way");
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, double& into) {
  return into = settings.Number(name);
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, float& into) {
  const double given = settings.Number(name);
  into = static_cast<float>(given);
  return given;
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, AsFloat32& into) {
  return into.given = settings.Number(name);
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, int64_t& into) {
  return into = settings.Integer(name);
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, int32_t& into) {
  const int64_t given = settings.Integer(name);
  into = static_cast<int32_t>(given);
  if (into != given) settings.Refuse(name, "out of range", "a number that int32 can hold");
  return given;
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, KernelInt& into) {
  return into.given = settings.Integer(name);
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, bool& into) {
  return into = ParseBool(settings.Text(name), Place(settings, name));
}

ShownValue ReadParameter(const Settings& settings, std::string_view name,
                         std::optional<double>& into) {
  into = settings.OptionalNumber(name);
  return into ? ShownValue(*into) : "none";
}

ShownValue ReadParameter(const Settings& settings, std::string_view name,
                         std::optional<float>& into) {
  const std::optional<double> given = settings.OptionalNumber(name);
  if (given) into = static_cast<float>(*given);
  return given ? ShownValue(*given) : "none";
}

ShownValue ReadParameter(const Settings& settings, std::string_view name, FixedOrDynamic& into) {
  if (settings.Text(name) == "dynamic") return "dynamic";
  return *(into.fixed = settings.Number(name));
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

PolicyInfo StaticPolicy() {
  using Config = StaticScale::Config;
  return PolicyOf<StaticScale>(
      {.name = "static",
       .summary = "a constant loss scale; no step is ever skipped",
       .rules = {.finite_test = FiniteTest::kElementwise},
       .checkpoint = Kept::kNothing},
      {Parameter<Config>(&Config::scale, "loss_scale", {"loss_scaling_factor"}, "1",
                         "the loss scale, as float32", ParameterRole::kStart)},
      [](Setup<Config>& setup) {
        setup.parameters = {{"loss_scale", double{setup.settings.StaticScale("loss_scale")}}};
      });
}

}  // namespace dlsim::sim
