// SPDX-License-Identifier: Apache-2.0
// How a run's path becomes its summary: of a replay's records, and of a sweep's answers.
#pragma once

#include <cstdint>

#include "dlsim/sim/replay.h"

namespace dlsim::sim {

// What a run's path consists of.
struct PathStep {
  int64_t step = 0;
  double scale = 0, next_scale = 0;
  bool skipped = false, finite = true, lower_scale_helps = true;
  double energy_lost = 0;  // over parameter gradients
};

PathStep PathStepOf(const ReplayStep& step);

inline void AddToPath(const PathStep& step, PathSummary& path) {
  if (path.steps++ == 0) path.min_scale = path.max_scale = step.scale;
  path.min_scale = step.scale < path.min_scale ? step.scale : path.min_scale;
  path.max_scale = step.scale > path.max_scale ? step.scale : path.max_scale;
  path.final_scale = step.next_scale;
  path.nonfinite_steps += !step.finite;
  path.hopeless_steps += !step.lower_scale_helps;
  path.skipped_steps += step.skipped;
  path.skip_run = step.skipped ? path.skip_run + 1 : 0;
  path.longest_skip_run =
      path.skip_run > path.longest_skip_run ? path.skip_run : path.longest_skip_run;
  if (step.skipped) return;
  if (!path.first_applied_step) path.first_applied_step = step.step;
  if (step.energy_lost > path.worst_step_energy_lost) {
    path.worst_step_energy_lost = step.energy_lost;
  }
}

}  // namespace dlsim::sim
