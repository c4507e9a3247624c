// SPDX-License-Identifier: Apache-2.0
// What a configuration asks for and 16 bits cannot hold: notes, each with its condition.
#pragma once

#include <string>
#include <vector>

#include "sim/config/config_tree.h"
#include "sim/config/training_config.h"

namespace dlsim::sim {

// Returns one line for each number of the file that the format which holds it rounds away: betas,
// epsilon, learning rate and weight decay against the formats of states and weights, and constants
// of masks and label smoothing against those of the training. Where the file does not say the
// format, the line begins with "if"; where all is fine there is none. `root` is the whole file.
std::vector<std::string> LintConfig(const TrainingConfig& config, const ConfigNode& root);

}  // namespace dlsim::sim
