// SPDX-License-Identifier: Apache-2.0
// Which runs of a sweep are best.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/sim/sweep.h"

namespace dlsim::sim {

// What runs are ranked by, the least first but for the scale; ties by gradient lost, skipped steps,
// head-room, energy lost, scale, and order.
enum class RankBy : uint8_t {
  kLoss,          // mean_loss, which must be known
  kSkipped,       // skipped_steps
  kEnergyLost,    // mean_energy_lost
  kWorstStep,     // worst_step_energy_lost
  kFirstApplied,  // first_applied_step; never comes last
  kFinalScale,    // final_scale, the largest first
};

constexpr auto EnumNames(RankBy) {
  return std::to_array<EnumName<RankBy>>({{RankBy::kLoss, "loss"},
                                          {RankBy::kSkipped, "skipped"},
                                          {RankBy::kEnergyLost, "energy-lost"},
                                          {RankBy::kWorstStep, "worst-step"},
                                          {RankBy::kFirstApplied, "first-applied"},
                                          {RankBy::kFinalScale, "final-scale"}});
}

// Which scales are preferred where nothing else ranks runs: the high ones in a format with fewer
// exponents than float32 (docs/tune.md has why), else the low ones.
enum class Prefers : uint8_t { kHighScale, kLowScale };

// Returns the indices of the runs, best first. Runs that the original would have ended come last,
// the later their end the better. `prefers`: of each run.
std::vector<size_t> Rank(std::span<const SweepOutcome> outcomes, std::span<const Prefers> prefers,
                         RankBy by);

// Returns the indices of the runs than which no other has both fewer skipped steps and a smaller
// gradient lost (without it mean energy lost), the fewest skipped first; one run for each pair of
// these, and none that the original would have ended unless it ends them all.
std::vector<size_t> ParetoFront(std::span<const SweepOutcome> outcomes,
                                std::span<const Prefers> prefers);

// Returns whether no figure but head-room and energy ranks one run before the other; without
// windows energy does.
bool Tied(const SweepOutcome& a, const SweepOutcome& b, RankBy by);

}  // namespace dlsim::sim
