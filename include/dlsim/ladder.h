// SPDX-License-Identifier: Apache-2.0
// The questions that a profile is to answer exactly.
#pragma once

#include <vector>

#include "dlsim/codec.h"
#include "dlsim/format.h"
#include "dlsim/histogram.h"

namespace dlsim {

// The powers of two among the scales of the default ladder, as exponents.
inline constexpr int kLowestScaleExponent = -24, kHighestScaleExponent = 40;

// All combinations of these; every kind of overflow in addition.
struct Ladder {
  std::vector<NamedFormat> formats;
  std::vector<Rounding> roundings;  // not kStochastic
  std::vector<Subnormals> subnormals;
  std::vector<float> scales;  // ascending and distinct
};

// The loss scales that the documented and the real Cerebras defaults can reach (2e15 / 2^k and
// 2e-14 * 2^k between 2e-14 and 2e15) and the powers of two from 2^-24 to 2^40, for fp16, bf16 and
// cb16 in every rounding mode but the stochastic one, subnormals kept and flushed.
Ladder DefaultLadder();

// Returns every threshold of the ladder's questions as an edge.
HistogramEdges EdgesOf(const Ladder& ladder);

}  // namespace dlsim
