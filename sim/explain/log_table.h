// SPDX-License-Identifier: Apache-2.0
// Logs that are tables: CSV with a column of steps and one of scales, as W&B exports it too.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "sim/explain/log_event.h"

namespace dlsim::sim {

// Returns the rows that have a step and a scale; nothing if the first line is no header with a
// column step (global_step, iteration) and a column scale (loss_scale, grad_scale, or a name that
// ends so, as in "run - loss_scale"). A column skipped (overflow, found_inf) is optional. Of
// TensorBoard's "Wall time,Step,Value" the name of the file at `place` states the tag. Throws
// InputError for a number that is none.
std::optional<std::vector<LogEvent>> ReadTable(std::string_view text, std::string_view place);

// Whether a file of that name counts samples as steps: DeepSpeed's csv_monitor calls it
// Train_Samples_loss_scale.csv. One step has as many as their greatest common divisor.
bool CountsSamples(std::string_view path);
void DivideBySamples(std::vector<LogEvent>& events);

}  // namespace dlsim::sim
