// SPDX-License-Identifier: Apache-2.0
// What a policy's run loses: of a replay, or predicted from the windows of the steps.
#pragma once

#include <cstddef>
#include <span>

#include "dlsim/sim/tune.h"

namespace dlsim::sim {

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

}  // namespace dlsim::sim
