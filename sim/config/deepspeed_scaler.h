// SPDX-License-Identifier: Apache-2.0
// The loss scaler that the table fp16 of a DeepSpeed configuration asks for.
#pragma once

#include "sim/config/deepspeed_values.h"
#include "sim/config/training_config.h"

namespace dlsim::sim {

// Returns the scaler of the file's table `fp16` at a stage of ZeRO. `enabled`: fp16 is on. Values
// without effect are only checked as the original checks them. Throws Error (exit code 2).
ConfigPolicy DeepSpeedScaler(const DeepSpeedValues& file, const DeepSpeedValues& fp16,
                             int64_t stage, bool enabled);

}  // namespace dlsim::sim
