// SPDX-License-Identifier: Apache-2.0
#include "sim/app/conversion_options.h"

#include <limits>

#include "dlsim/error.h"
#include "sim/app/help_format.h"
#include "sim/app/typed_options.h"
#include "sim/base/number.h"

namespace dlsim::sim {

void AddConversionOptions(CLI::App& command, ConversionOptions& options) {
  StartGroup(command, kEmulationGroup);
  AddChoice<Rounding>(command, "--rounding", options.rounding, "MODE",
                      "rne (default): to nearest, ties to even; rtz: toward zero; rna: ties away; "
                      "ru, rd: up, down; sr: stochastic");
  AddChoice<Overflow>(command, "--overflow", options.overflow, "RULE",
                      "inf (default): as IEEE 754; saturate: clamp to the largest finite value");
  AddChoice<Subnormals>(command, "--subnormals", options.subnormals, "RULE",
                        "keep (default), or flush: subnormal results become zero");
  AddCount(command, "--seed", options.seed, "Seed of stochastic rounding (default 0)");
}

float ParseScale(const std::string& text) {
  const double scale = ParseNumber(text, "--scale");
  const bool is_float = scale > 0 && scale <= std::numeric_limits<float>::max();
  if (is_float && static_cast<float>(scale) > 0) return static_cast<float>(scale);
  throw UsageError("--scale", "out of range", "a positive float32 number", Quoted(text));
}

}  // namespace dlsim::sim
