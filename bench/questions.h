// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of CPU and GPU alike convert and ask.
#pragma once

#include "dlsim/codec.h"

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

// Scales of the question that asks for many: 2^0, 2^4, .. 2^28.
inline constexpr int kScales = 8;
inline constexpr int kLog2Step = 4;

}  // namespace dlsim::bench
