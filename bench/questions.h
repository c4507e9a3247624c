// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of CPU and GPU alike convert and ask.
#pragma once

#include <cmath>
#include <vector>

#include "dlsim/format.h"
#include "dlsim/measure.h"

namespace dlsim::bench {

struct Mode {
  const char* name;
  Rounding rounding;
};

inline constexpr Mode kModes[] = {
    {"rne", Rounding::kNearestEven},   {"rtz", Rounding::kTowardZero},
    {"rna", Rounding::kNearestAway},   {"ru", Rounding::kTowardPositive},
    {"rd", Rounding::kTowardNegative}, {"sr", Rounding::kStochastic},
};

inline constexpr const char* kFormatNames[] = {"fp16", "bf16", "cb16"};

// Every format at 8 scales: 2^0, 2^4, .. 2^28.
inline std::vector<Measurement> ManyQuestions() {
  std::vector<Measurement> questions;
  for (const char* format : kFormatNames) {
    for (int i = 0; i < 8; ++i) {
      questions.push_back(
          {.conversion = {ParseFormat(format).format}, .scale = std::ldexp(1.0f, i * 4)});
    }
  }
  return questions;
}

}  // namespace dlsim::bench
