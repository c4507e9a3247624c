// SPDX-License-Identifier: Apache-2.0
// The number format and the loss scaler of a DeepSpeed configuration: fp16, bf16, torch_autocast
// and zero_optimization.
#pragma once

#include "sim/config/deepspeed_values.h"
#include "sim/config/training_config.h"

namespace dlsim::sim {

// Sets format and policy from the whole file. Throws Error (exit code 2) as ConfigBlock does.
void ReadDeepSpeedTypes(const DeepSpeedValues& file, TrainingConfig& config);

}  // namespace dlsim::sim
