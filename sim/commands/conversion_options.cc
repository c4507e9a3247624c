// SPDX-License-Identifier: Apache-2.0
#include "sim/commands/conversion_options.h"

#include <limits>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "sim/commands/typed_options.h"
#include "sim/number.h"

namespace dlsim {
namespace {

template <class T>
using Choices = std::vector<std::pair<std::string_view, T>>;

const Choices<Rounding> kRoundings = {
    {"rne", Rounding::kNearestEven},   {"rtz", Rounding::kTowardZero},
    {"rna", Rounding::kNearestAway},   {"ru", Rounding::kTowardPositive},
    {"rd", Rounding::kTowardNegative}, {"sr", Rounding::kStochastic}};
const Choices<Overflow> kOverflows = {{"inf", Overflow::kInfinity},
                                      {"saturate", Overflow::kSaturate}};
const Choices<Subnormals> kSubnormals = {{"keep", Subnormals::kKeep},
                                         {"flush", Subnormals::kFlushToZero}};

template <class T>
std::string_view NameAmong(const Choices<T>& choices, T value) {
  for (const auto& [name, choice] : choices) {
    if (choice == value) return name;
  }
  return "";
}

}  // namespace

void AddConversionOptions(CLI::App& command, ConversionOptions& options) {
  AddChoice<Rounding>(command, "--rounding", options.rounding, kRoundings, "MODE",
                      "rne (default): to nearest, ties to even; rtz: toward zero; rna: ties away; "
                      "ru, rd: up, down; sr: stochastic");
  AddChoice<Overflow>(command, "--overflow", options.overflow, kOverflows, "RULE",
                      "inf (default): as IEEE 754; saturate: clamp to the largest finite value");
  AddChoice<Subnormals>(command, "--subnormals", options.subnormals, kSubnormals, "RULE",
                        "keep (default), or flush: subnormal results become zero");
  AddCount(command, "--seed", options.seed, "Seed of stochastic rounding (default 0)");
}

float ParseScale(const std::string& text) {
  const double scale = ParseNumber(text, "--scale");
  const bool is_float = scale > 0 && scale <= std::numeric_limits<float>::max();
  if (is_float && static_cast<float>(scale) > 0) return static_cast<float>(scale);
  throw UsageError("--scale", "out of range", "a positive float32 number", Quoted(text));
}

Rounding ParseRounding(const std::string& text) {
  std::vector<std::string_view> names;
  for (const auto& choice : kRoundings) names.push_back(choice.first);
  return kRoundings[ParseChoice("--rounding", text, names)].second;
}

std::string_view NameOf(Rounding rounding) { return NameAmong(kRoundings, rounding); }
std::string_view NameOf(Overflow overflow) { return NameAmong(kOverflows, overflow); }
std::string_view NameOf(Subnormals subnormals) { return NameAmong(kSubnormals, subnormals); }

}  // namespace dlsim
