// SPDX-License-Identifier: Apache-2.0
#include "sim/app/conversion_options.h"

#include <limits>

#include "dlsim/error.h"
#include "sim/base/number.h"

namespace dlsim::sim {

void ConversionOptions::Visit(OptionRows& option) {
  option.Group(kEmulationGroup);
  option("--rounding", rounding, "MODE",
         "rne (default): to nearest, ties to even; rtz: toward zero; rna: to nearest, ties away "
         "from zero; ru, rd: up, "
         "down; sr: stochastic");
  option("--overflow", overflow, "RULE",
         "inf (default): overflow to infinity, as IEEE 754; saturate: clamp to the largest finite "
         "value");
  option("--subnormals", subnormals, "RULE",
         "keep (default), or flush: subnormal results become zero");
  option("--seed", seed, "Seed of stochastic rounding");
}

float ParseScale(const std::string& text) {
  const double scale = ParseNumber(text, "--scale");
  const bool is_float = scale > 0 && scale <= std::numeric_limits<float>::max();
  if (is_float && static_cast<float>(scale) > 0) return static_cast<float>(scale);
  throw UsageError("--scale", "out of range", "a positive float32 number", Quoted(text));
}

}  // namespace dlsim::sim
