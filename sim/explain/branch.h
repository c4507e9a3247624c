// SPDX-License-Identifier: Apache-2.0
// One of the ways along a recorded path that are followed side by side.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/explain/policy_fit.h"

namespace dlsim::sim {

// One way along the path so far.
struct Branch {
  LossScaler scaler;
  Way way = {};        // through this stretch
  bool ended = false;  // the original has raised
};

bool Fits(const std::optional<PrintedNumber>& printed, double scale);

// What a scaler that looks at no gradients learns from a step.
ScalerInput InputOf(bool overflow);

// Takes a step; false if the policy would not have done what the log tells.
bool TakeStep(bool overflow, Branch& branch);

// Returns the scale that the original would print as the next one. One that is announced early acts
// after one more step.
double NextScale(const LossScaler& scaler, bool announced);

// Takes the step `at` of the stretch, which overflows; false if its message does not fit.
bool TakeOverflow(const LoggedOverflow& logged, int64_t at, bool announced, Branch& branch);

// Branches that will go on alike become one.
void RemoveTwins(std::vector<Branch>& branches);

}  // namespace dlsim::sim
