// SPDX-License-Identifier: Apache-2.0
// The runs of a sweep, made from its grid.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/format.h"
#include "dlsim/profile_file.h"
#include "dlsim/sim/replay.h"
#include "sim/sweep/grid.h"

namespace dlsim::sim {

struct SweepSetup {
  SweepGrid grid;
  std::vector<Rounding> roundings;        // those of grid.roundings
  Conversion conversion;                  // but for format and rounding
  std::optional<FiniteTest> finite_test;  // instead of each policy's own
};

// Points whose parameters their policy refuses for one reason.
struct RefusedPoints {
  std::string policy;
  std::string reason;  // the original's "Type: message" for the first of them
  uint64_t count = 0;
};

struct SweepPlan {
  std::vector<NamedFormat> formats;  // those of the grid
  std::vector<GridPoint> points;     // that were not refused
  std::vector<ReplayRun> runs;       // of the points
  std::vector<RefusedPoints> refused;
};

// Throws Error (exit code 2) as PointsOf does, and if all points are refused.
SweepPlan PlanSweep(const SweepSetup& setup);

// Refuses the runs that a profile cannot answer. Throws Error (exit code 2) if those are all.
void KeepAnswerable(const ProfileReader& profile, SweepPlan& plan);

// Returns all parameters of a point, defaults included.
std::vector<NamedValue> AllParameters(const SweepSetup& setup, const SweepPlan& plan,
                                      const GridPoint& point);

}  // namespace dlsim::sim
