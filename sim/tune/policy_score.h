// SPDX-License-Identifier: Apache-2.0
// What a policy with given parameters comes to on a table of loss scales.
#pragma once

#include <optional>
#include <vector>

#include "dlsim/sim/tune.h"
#include "sim/tune/scale_table.h"

namespace dlsim::sim {

// Differences of the mean loss below this count as none: a step of ten thousand, or a hundredth of
// the harm from which on training suffers.
inline constexpr double kLossResolution = 1e-4;

// Returns nothing if the policy refuses the parameters. Gives up beyond a loss of `of_interest`.
std::optional<PolicyScore> ScoreOf(const PolicyFamily& family, const ScaleParameters& parameters,
                                   const ScaleTable& table, double of_interest = 1);

// The mean loss if this scale is used at every step.
double StaticLoss(const ScaleColumn& column);

// The least that each step loses at any scale, by hindsight; valid also between the scales of the
// table.
std::vector<double> LeastLosses(const ScaleTable& table);

}  // namespace dlsim::sim
