// SPDX-License-Identifier: Apache-2.0
#include "sim/scaled/delayed_scale.h"

#include <algorithm>
#include <cmath>

#include "dlsim/scaled_codec.h"

namespace dlsim::sim {

DelayedScale::DelayedScale(const ScaledFormat& format, const Format& element)
    : format_(format), element_(element), history_(format.delayed->history) {}

void DelayedScale::Advance(float largest) {
  history_.front() = largest;
  const bool newest = format_.delayed->decides == FromHistory::kMostRecent;
  const float decides = newest ? largest : *std::ranges::max_element(history_);
  if (decides > 0 && std::isfinite(decides)) scale_ = ScaleFor(format_, element_, decides);
  std::rotate(history_.begin(), history_.begin() + 1, history_.end());
  history_.front() = 0;
}

}  // namespace dlsim::sim
