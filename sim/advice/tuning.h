// SPDX-License-Identifier: Apache-2.0
// The parameters of a policy that follow from the scale windows of the steps, and what a run of it
// loses; include/dlsim/sim/tune.h has the tuning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/sim/tune.h"

namespace dlsim::sim {

// Powers of two that are tried and recommended.
inline constexpr int kLowestScaleExponent = -24, kHighestScaleExponent = 40;

// Returns the policy that is tuned for a format.
std::string_view TunedPolicy(const TuneRequest& request, const std::string& format);

// What can be tuned of a policy: its initial scale, floor, ceiling, interval and hysteresis, under
// whatever names its stack has for them.
struct PolicyFamily {
  const PolicyInfo* policy = nullptr;
  std::string format;  // the defaults of some policies depend on it
  // The stack's names; empty if it has no such parameter.
  std::string init, min, max, interval, hysteresis;
  ScaleParameters defaults;
  bool current = false;  // the defaults are those of the current policy, not of the stack
  ParameterMap base;     // the other parameters that are not the policy's own
  // DeepSpeed's JSON has the exponent of the initial scale, 0 or more.
  bool powers_of_two_from_one = false;
  double lowest_init = 0, lowest_min = 0;  // powers of two that the policy accepts

  // Returns the parameters that the stack has, under its names.
  std::vector<NamedValue> Named(const ScaleParameters& parameters) const;

  // Returns the scaler, or nothing if the policy refuses the parameters or its configuration cannot
  // express them.
  std::optional<ConfiguredScaler> Make(const ScaleParameters& parameters) const;
};

// The defaults are those of the policy under `settings`, KEY=VALUE; a fixed scale among them is
// left out. Throws Error (exit code 2) for a policy that has no initial scale and interval, or more
// than one scale, and for settings that it refuses.
PolicyFamily FamilyOf(std::string_view policy, const std::string& format,
                      std::span<const std::string> settings = {});

// Differences of the gradient lost below this count as none: a step of ten thousand, or a hundredth
// of the harm from which on training suffers.
inline constexpr double kLossResolution = 1e-4;

// What an applied step loses: all if an activation gradient overflows, nothing as long as its harm
// (docs/numerics.md) stays below the threshold, else the mean over tensors of what each loses of
// its own energy, the larger of parameter and activation gradients.
double LossOf(const ReplayStep& step, const Conversion& conversion);

// Returns the score of a replay of `steps` steps; those that a fatal error cut off are lost.
PolicyScore ScoreOf(const ReplayResult& result, size_t steps, const Conversion& conversion);

// Predicts the score of a scaler that learns nothing of a step but whether it was finite.
PolicyScore Predict(LossScaler scaler, std::span<const StepWindow> windows);

// The mean of what each step loses at the best power of two, by hindsight.
double LeastLoss(std::span<const StepWindow> windows);

// Returns the scale of the verdict, or the one that is safe at the most steps.
double FixedScale(const FormatAdvice& advice);

// Returns parameters that follow from the windows: all scales are powers of two within what the
// policy accepts. The start is the scale of the verdict, or, where it needs none, the highest with
// head-room; the rest the stack's defaults, as long as nothing else loses less; then the start of
// the first step's window, other intervals, floors and ceilings.
PolicyChoice Derive(const PolicyFamily& family, const FormatAdvice& advice);

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

}  // namespace dlsim::sim
