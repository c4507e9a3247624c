// SPDX-License-Identifier: Apache-2.0
#include "src/sums/precision_level.h"

#include <algorithm>

#include "src/base/check.h"

namespace dlsim {

const LevelRule& RuleOf(PrecisionOptLevel level, Operation operation) {
  const auto rule = std::ranges::find_if(kLevelRules, [&](const LevelRule& r) {
    return r.level == level && r.operation == operation;
  });
  DLSIM_CHECK(rule != kLevelRules.end());
  return *rule;
}

AccumulationOptions OptionsOf(PrecisionOptLevel level, Operation operation,
                              const LevelParameters& parameters) {
  const Precision narrow = FormatPrecision(parameters.short_format);
  AccumulationOptions options;
  options.inputs = narrow;
  options.inputs.conversion.rounding = Rounding::kNearestEven;
  options.chunk_length = parameters.chunk_length;
  options.random = parameters.random;
  const Sums sums = RuleOf(level, operation).sums;
  if (sums != Sums::kFloat32) options.accumulator = narrow;
  if (sums == Sums::kShort) options.combiner = options.terms = narrow;
  return options;
}

}  // namespace dlsim
