// SPDX-License-Identifier: Apache-2.0
#include "sim/commands/conversion_options.h"

#include "sim/commands/typed_options.h"

namespace dlsim {

void AddConversionOptions(CLI::App& command, ConversionOptions& options) {
  AddChoice<Rounding>(command, "--rounding", options.rounding,
                      {{"rne", Rounding::kNearestEven},
                       {"rtz", Rounding::kTowardZero},
                       {"rna", Rounding::kNearestAway},
                       {"ru", Rounding::kTowardPositive},
                       {"rd", Rounding::kTowardNegative},
                       {"sr", Rounding::kStochastic}},
                      "MODE",
                      "rne (default): to nearest, ties to even; rtz: toward zero; rna: ties away; "
                      "ru, rd: up, down; sr: stochastic");
  AddChoice<Overflow>(command, "--overflow", options.overflow,
                      {{"inf", Overflow::kInfinity}, {"saturate", Overflow::kSaturate}}, "RULE",
                      "inf (default): as IEEE 754; saturate: clamp to the largest finite value");
  AddChoice<Subnormals>(command, "--subnormals", options.subnormals,
                        {{"keep", Subnormals::kKeep}, {"flush", Subnormals::kFlushToZero}}, "RULE",
                        "keep (default), or flush: subnormal results become zero");
  AddCount(command, "--seed", options.seed, "Seed of stochastic rounding (default 0)");
}

}  // namespace dlsim
