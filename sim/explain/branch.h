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
  Way way = {};                      // through this stretch
  bool ended = false;                // the original has raised
  std::optional<size_t> noted = {};  // the last of PolicyFit::ways on this path
};

bool Fits(const std::optional<PrintedNumber>& printed, double scale);

// What a scaler that looks at no gradients learns from a step.
ScalerInput InputOf(bool overflow);

// Takes a step; false if the policy would not have done what the log states.
bool TakeStep(bool overflow, Branch& branch);

// Takes up to `most` clean steps, up to the first that changes the scale, or after which the
// original does not go on, or that it does not take as the log states.
struct CleanSteps {
  int64_t count = 0;  // with that step
  bool fits = true;   // false: that step is not taken
};
CleanSteps TakeCleanSteps(int64_t most, Branch& branch);

// Returns the scale that the original would print as the next one. One that is announced early acts
// after one more step.
double NextScale(const LossScaler& scaler, bool announced);

// False if the message of an overflow does not fit the scale, or the original has ended.
bool MayTell(const LoggedOverflow& logged, const Branch& branch);

// Takes the step `at` of the stretch, which overflows; false if its message does not fit.
bool TakeOverflow(const LoggedOverflow& logged, int64_t at, bool announced, Branch& branch);

// Branches that will go on alike become one.
void RemoveTwins(std::vector<Branch>& branches);

}  // namespace dlsim::sim
