// SPDX-License-Identifier: Apache-2.0
// The results of a sweep: a table, JSON "dlsim.sweep/1" and CSV (docs/sweep.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/gradient_source.h"
#include "sim/base/json_value.h"
#include "sim/base/output_file.h"
#include "sim/sweep/plan.h"
#include "sim/sweep/ranking.h"
#include "sim/sweep/sweep_windows.h"

namespace dlsim::sim {

// What a sweep was and what came out.
struct SweepResult {
  const SweepSetup& setup;
  const SweepPlan& plan;
  RankBy sort;
  std::vector<SweepOutcome> outcomes;  // of plan.points
  std::vector<SweepAdvice> verdicts;   // see SweepRun
  std::vector<Prefers> prefers = {};   // of plan.points
  std::vector<size_t> order = {};      // see Rank
  std::vector<size_t> pareto = {};     // see ParetoFront
};

// Returns the values of the axes at a point, under the distinct keys of AxisKeys; empty where the
// policy does not have the key.
std::vector<std::string> AxisKeys(const SweepGrid& grid);
std::vector<std::string> ValuesAt(const SweepGrid& grid, const GridPoint& point);

// Returns the verdict, as a report begins with it.
std::string FormatSweepAdvice(const SweepResult& result);

// Returns the best runs in `top` rows, the Pareto front and what was refused, as text.
std::string FormatSweep(const SweepResult& result, uint64_t top);

void WriteSweepJson(const SourceFacts& facts, std::span<const std::string> paths,
                    const Json& options, const SweepResult& result, OutputFile& out);
void WriteSweepCsv(const SweepResult& result, OutputFile& out);

}  // namespace dlsim::sim
