// SPDX-License-Identifier: Apache-2.0
// The options that describe the training around a loss-scaling policy: clipping, accumulation,
// optimizers, and interruption.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "dlsim/sim/replay.h"
#include "sim/base/json_value.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {

// As the user wrote them; Apply parses.
struct TrainingOptions {
  std::string max_gradient_norm, max_gradient_value;
  std::string grad_accum_steps, resume_at;
  std::vector<std::string> optimizers;  // NAME=GLOB
};

// Adds --max-gradient-norm, --max-gradient-value, --clip-rule, --clip-at, --grad-accum-steps,
// --optimizer, --state and --resume-at.
void AddTrainingOptions(CLI::App& command, TrainingOptions& options, SimulationRequest& request);

// Stores what was given. Throws Error (exit code 2).
void Apply(const TrainingOptions& options, SimulationRequest& request, ReplayOptions& replay);

// Refuses what does not fit the trace: an interruption after its last step. Throws Error (2).
void CheckAgainst(const SourceFacts& facts, const SimulationRequest& request);

// Refuses an optimizer that took no gradient in the whole replay. Throws Error (exit code 2).
void CheckOptimizers(const std::vector<OptimizerGroup>& optimizers,
                     const std::vector<SimulationRun>& runs);

// The options as JSON, for the record; keys are absent where the option has its default.
Json Describe(const SimulationRequest& request, const ReplayOptions& replay);

}  // namespace dlsim::sim
