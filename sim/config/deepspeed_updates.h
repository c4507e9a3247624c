// SPDX-License-Identifier: Apache-2.0
// How DeepSpeed updates weights: the formats of weights, states and gradients, and its own Adam.
#pragma once

#include "sim/config/deepspeed_values.h"
#include "sim/config/update_formats.h"

namespace dlsim::sim {

// `type`: "fp16" or "bf16", which is enabled; `stage`: that of ZeRO.
UpdateRules ReadDeepSpeedUpdates(const DeepSpeedValues& file, std::string_view type, int64_t stage);

}  // namespace dlsim::sim
