// SPDX-License-Identifier: Apache-2.0
// Notes that the loss scalers of Cerebras' PyTorch and TensorFlow stacks share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dlsim::sim {

// Notes the limits that Cerebras' documentation prints.
void NoteMisprints(double init_scale, double min_loss_scale, double max_loss_scale,
                   std::vector<std::string>& notes);

// Notes what a fraction of tolerated overflows means, where the count of steps restarts after
// `most_steps` clean ones.
void NoteTolerance(double overflow_tolerance, int64_t most_steps, std::vector<std::string>& notes);

}  // namespace dlsim::sim
