// SPDX-License-Identifier: Apache-2.0
// What a policy with given parameters comes to on a table of loss scales.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/tune/policy_family.h"
#include "sim/tune/scale_table.h"

namespace dlsim {

// Differences of the mean loss below this count as none.
inline constexpr double kLossResolution = 1e-6;

// Evidence and verdicts call losses below this none: what so little changes drowns in the noise of
// training.
inline constexpr double kNegligibleLoss = 1e-6;

struct PolicyScore {
  ScaleParameters parameters;
  // Mean over steps of what the step loses of its gradient's energy: all if it is not finite. Steps
  // after a fatal error are lost.
  double mean_loss = 1;
  uint64_t skipped = 0;
  uint64_t first_skips = 0;  // steps skipped before the first applied one
  uint64_t events = 0;       // steps at which the original software raises an error
  double min_scale = 0, max_scale = 0;
  bool grew = false;           // the scale was raised at some step
  bool given_up = false;       // the loss went beyond what was of interest: it is a lower bound
  std::vector<float> inexact;  // scales used that the table only bounds: the loss is a bound, too

  bool exact() const { return inexact.empty() && !given_up; }

  // False if the original software raises an error, which ends the training.
  bool eligible() const { return events == 0; }
};

// Returns nothing if the policy refuses the parameters. Gives up beyond a loss of `of_interest`.
std::optional<PolicyScore> ScoreOf(const PolicyFamily& family, const ScaleParameters& parameters,
                                   const ScaleTable& table, double of_interest = 1);

// The mean loss if this scale is used at every step.
double StaticLoss(const ScaleColumn& column);

// The least that each step loses at any scale, by hindsight; valid also between the scales of the
// table.
std::vector<double> LeastLosses(const ScaleTable& table);

}  // namespace dlsim
