// SPDX-License-Identifier: Apache-2.0
// Delayed scaling, TransformerEngine's: the scale of a tensor at a step follows from the largest
// magnitudes of steps before.
#pragma once

#include <vector>

#include "dlsim/scaled_format.h"

namespace dlsim::sim {

class DelayedScale {
 public:
  // `format` has delayed scaling; `element` is the format of this tensor's elements.
  DelayedScale(const ScaledFormat& format, const Format& element);

  // Returns the scale to use at the coming step; 1 at the first.
  float scale() const { return scale_; }

  // Ends a step with the largest magnitude of the tensor in it. Where that of the history is zero,
  // infinite or NaN, the scale stays.
  void Advance(float largest);

 private:
  ScaledFormat format_;
  Format element_;
  float scale_ = 1;
  std::vector<float> history_;  // [0] is the step that ends, [1] the oldest
};

}  // namespace dlsim::sim
