// SPDX-License-Identifier: Apache-2.0
// The results of a sweep: which runs are best, as a table, JSON "dlsim.sweep/1" and CSV
// (docs/sweep.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/sim/step.h"
#include "dlsim/sim/sweep.h"
#include "sim/base/rows.h"
#include "sim/sweep/grid.h"

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

// What a sweep was and what came out.
struct SweepResult {
  const SweepGrid& grid;
  const SweepPlan& plan;
  RankBy sort;
  SweepRun run;                       // outcomes of plan.points
  std::vector<Prefers> prefers = {};  // of plan.points
  std::vector<size_t> order = {};     // see Rank
  std::vector<size_t> pareto = {};    // see ParetoFront
};

// Ranks the outcomes.
SweepResult ResultOf(const SweepGrid& grid, const SweepPlan& plan, RankBy sort, SweepRun run);

// Returns the verdict, as a report begins with it.
std::string FormatSweepAdvice(const SweepResult& result);

// Returns the best runs in `top` rows, the Pareto front and what was refused, as text.
std::string FormatSweep(const SweepResult& result, uint64_t top);

void WriteSweepJson(const TellRows& trace, const TellRows& options, const SweepResult& result,
                    OutputFile& out);
void WriteSweepCsv(const SweepResult& result, OutputFile& out);
void AddSweepKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
