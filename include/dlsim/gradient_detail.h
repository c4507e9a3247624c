// SPDX-License-Identifier: Apache-2.0
// What some policies and clipping ask of a step's gradient beyond the counters.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "dlsim/enum_names.h"

namespace dlsim {

// Which gradients are clipped: scaled ones shrink by the loss scale too much.
enum class ClipDomain : uint8_t { kUnscaled, kScaled };

constexpr auto EnumNames(ClipDomain) {
  return std::to_array<EnumName<ClipDomain>>(
      {{ClipDomain::kUnscaled, "unscaled"}, {ClipDomain::kScaled, "scaled"}});
}

// What to find out about the elements of the step's gradient, the sum over its micro-steps.
struct DetailQuestion {
  float edge = std::numeric_limits<float>::infinity();   // of the scaled magnitudes
  float limit = std::numeric_limits<float>::infinity();  // of magnitudes, to clip at
  ClipDomain limit_domain = ClipDomain::kUnscaled;
  bool sums = true;  // the two of GradientDetail, which cost the most: left at 0 by some without
  bool absmax = true;  // the one of GradientDetail; found by most without, too

  friend bool operator==(const DetailQuestion&, const DetailQuestion&) = default;
};

struct GradientDetail {
  double scaled_sum = 0;             // of the still scaled elements, float64 in index order
  double scaled_sum_of_squares = 0;  // the same for their squares
  float absmax = 0;                  // of the unscaled elements; infinity if one is not finite
  uint64_t below_edge = 0;           // scaled elements with a magnitude below the edge ...
  uint64_t above_edge = 0;           // ... and from it on; NaN is neither
  uint64_t above_limit = 0;          // elements that clipping by value changes
  uint64_t elements = 0;             // of the sum over micro-steps

  // Adds what follows in index order.
  void Merge(const GradientDetail& later) {
    scaled_sum += later.scaled_sum;
    scaled_sum_of_squares += later.scaled_sum_of_squares;
    absmax = later.absmax > absmax ? later.absmax : absmax;  // never NaN
    below_edge += later.below_edge;
    above_edge += later.above_edge;
    above_limit += later.above_limit;
    elements += later.elements;
  }
};

// What a policy that sets its factor from the gradient at hand learns before the step.
struct GradientSpread {
  float absmax = 0;               // over finite elements
  double standard_deviation = 0;  // population, over finite elements
};

}  // namespace dlsim
