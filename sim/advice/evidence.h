// SPDX-License-Identifier: Apache-2.0
// What supports a recommendation: limits over time, the window of good scales, and what the stacks'
// own defaults come to.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/tune.h"

namespace dlsim::sim {

// The scales, powers of two or not, that serve every step that some scale makes finite.
struct CommonScales {
  double low = 0;                       // a power of two
  bool low_open = false;                // nothing bounds it
  double high = 0;                      // the largest that no such step forbids
  int64_t low_step = 0, high_step = 0;  // that decide
  bool empty() const { return low > high; }
};
CommonScales CommonScalesOf(std::span<const StepWindow> windows);

// How far up the steps let the scale go, over those that some scale makes finite; all 0 without
// any.
struct Headroom {
  double min = 0, fifth_percentile = 0, median = 0, last = 0;
  double min_first_half = 0, min_second_half = 0;
  double spread_binades = 0;  // from the lowest to the highest
};
Headroom HeadroomOf(std::span<const StepWindow> windows);

// Returns the verdict as what to do about the loss scale.
std::string_view ScalingAdvised(const FormatAdvice& advice);

// Returns why.
std::string ReasonOf(const FormatTuning& tuning);

// Adds what makes the recommendation less sure. `all`: of all formats.
void NoteDoubts(std::span<const FormatTuning> all, FormatTuning& tuning);

// Replays recommendations, comparisons and what is to blame for all formats, and fills in what they
// come to.
void ReplayEvidence(const GradientSource& source, const ReplayOptions& options,
                    std::span<const ReplayRun> prototypes,
                    const std::optional<CurrentPolicy>& current, std::span<FormatTuning> tunings);

}  // namespace dlsim::sim
