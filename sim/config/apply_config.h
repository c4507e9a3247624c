// SPDX-License-Identifier: Apache-2.0
// Lets a training configuration fill in what the command line does not say.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dlsim/sim/forward.h"
#include "sim/config/training_config.h"
#include "sim/replay/simulation.h"

namespace dlsim::sim {

// Returns the file's settings KEY=VALUE for its policy, less those whose parameter the command
// line sets (as KEY=VALUE or POLICY.KEY=VALUE, under any alias).
std::vector<std::string> SettingsOf(const ConfigPolicy& policy,
                                    std::span<const std::string> command_line);

// Fills in formats, policies, their settings, clipping and the finite test where the request, made
// from the command line, does not say otherwise.
void ApplyConfig(const TrainingConfig& config, SimulationRequest& request);

// Returns how the stack of the file holds values in 16 bits: DeepSpeed and Megatron have the model
// in them, the others leave it to autocast.
Recipe RecipeOf(const TrainingConfig& config);

// Returns the lines of a report: what was read, and the notes; empty without a file.
std::string DescribeConfig(const std::string& path, const TrainingConfig& config);

}  // namespace dlsim::sim
