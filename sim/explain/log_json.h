// SPDX-License-Identifier: Apache-2.0
// Logs that are JSON: the trainer_state.json of Hugging Face's Trainer.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "sim/explain/log_event.h"

namespace dlsim::sim {

// Returns the entries of "log_history" that have a step and a scale (loss_scale, grad_scale or
// scale), or a step and a gradient norm that is not finite; nothing if the text is no such object.
std::optional<std::vector<LogEvent>> ReadTrainerState(std::string_view text);

}  // namespace dlsim::sim
