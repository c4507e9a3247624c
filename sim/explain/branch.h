// SPDX-License-Identifier: Apache-2.0
// One of the ways along a recorded path that are followed side by side.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "sim/explain/policy_fit.h"

namespace dlsim::sim {

// One way along the path so far.
struct Branch {
  LossScaler scaler;
  Way way = {};                      // through this stretch
  bool ended = false;                // the original has raised
  size_t origin = 0;                 // its place among the ways into this stretch
  std::optional<size_t> noted = {};  // the last of PolicyFit::ways on this path
};

bool Fits(const std::optional<PrintedNumber>& printed, double scale);

// What a scaler that looks at no gradients learns from a step.
ScalerInput InputOf(bool overflow);

// Takes a step; false if the policy would not have done what the log states.
bool TakeStep(bool overflow, Branch& branch);

// Takes up to `most` clean steps, up to the first after which the original does not go on, or that
// it does not take as the log states, or, if asked, that changes the scale.
struct CleanSteps {
  int64_t count = 0;  // with that step
  bool fits = true;   // false: that step is not taken
};
CleanSteps TakeCleanSteps(int64_t most, CleanUntil until, Branch& branch);

// False if the message of an overflow does not fit the scale, or the original has ended.
bool MayTell(const LoggedOverflow& logged, const Branch& branch);

// Takes the step `at` of the stretch, which overflows; false if its message does not fit.
bool TakeOverflow(const LoggedOverflow& logged, int64_t at, bool announced, Branch& branch);

// Writes as bytes what decides how a branch of one stretch goes on.
void WriteState(const Branch& branch, std::string& bytes);

// Branches of one stretch of which no two go on alike.
class DifferentBranches {
 public:
  // False if an added one goes on as this one does.
  bool Add(const Branch& branch) {
    WriteState(branch, state_);
    return !states_.contains(state_) && states_.insert(state_).second;
  }

  void Clear() { states_.clear(); }

 private:
  std::unordered_set<std::string> states_;
  std::string state_;
};

// Keeps the first of those that go on alike.
void RemoveTwins(std::vector<Branch>& branches);

}  // namespace dlsim::sim
