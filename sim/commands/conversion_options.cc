// SPDX-License-Identifier: Apache-2.0
#include "sim/commands/conversion_options.h"

#include <map>
#include <string>

namespace dlsim {

void AddConversionOptions(CLI::App& command, ConversionOptions& options) {
  static const std::map<std::string, Rounding> kRoundings = {
      {"rne", Rounding::kNearestEven},   {"rtz", Rounding::kTowardZero},
      {"rna", Rounding::kNearestAway},   {"ru", Rounding::kTowardPositive},
      {"rd", Rounding::kTowardNegative}, {"sr", Rounding::kStochastic}};
  static const std::map<std::string, Overflow> kOverflows = {{"inf", Overflow::kInfinity},
                                                             {"saturate", Overflow::kSaturate}};
  static const std::map<std::string, Subnormals> kSubnormals = {
      {"keep", Subnormals::kKeep}, {"flush", Subnormals::kFlushToZero}};
  const auto add = [&](const char* name, auto& target, const auto& names, const char* type,
                       const char* help) {
    command.add_option(name, target, help)
        ->transform(CLI::CheckedTransformer(names).description(""))
        ->option_text(type);
  };
  add("--rounding", options.rounding, kRoundings, "MODE",
      "rne (default): to nearest, ties to even; rtz: toward zero; rna: ties away; ru, rd: up, "
      "down; sr: stochastic");
  add("--overflow", options.overflow, kOverflows, "RULE",
      "inf (default): as IEEE 754; saturate: clamp to the largest finite value");
  add("--subnormals", options.subnormals, kSubnormals, "RULE",
      "keep (default), or flush: subnormal results become zero");
  command.add_option("--seed", options.seed, "Seed of stochastic rounding (default 0)")
      ->option_text("N");
}

}  // namespace dlsim
