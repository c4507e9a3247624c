// SPDX-License-Identifier: Apache-2.0
// How transformers' Trainer updates weights, as far as its arguments say.
#pragma once

#include "sim/config/half_precision.h"
#include "sim/config/update_formats.h"

namespace dlsim::sim {

// The numbers of the arguments, which the trainer gives its Adam, and DeepSpeed's where it has
// "auto".
UpdateSettings TrainerAdam(const ConfigBlock& arguments);

// Without DeepSpeed. `precision`: that of the switches fp16 and bf16. Whether Accelerate's launcher
// gives the run a copy of the weights in float32 is not in the arguments: `master` stays absent.
UpdateRules ReadHfUpdates(const ConfigBlock& arguments, Precision precision);

}  // namespace dlsim::sim
