// SPDX-License-Identifier: Apache-2.0
// DeepSpeed reports an overflow in up to three lines: its loss scaler, its optimizer and the number
// of the iteration each have their own.
#pragma once

#include <vector>

#include "sim/explain/log_event.h"

namespace dlsim::sim {

// True for an overflow that states the scale after it.
bool IsOverflowWithScale(const LogEvent& event);

// True if both tell the same scales.
bool SameScales(const LogEvent& a, const LogEvent& b);

// Leaves one event per overflow of an engine.
void JoinDeepSpeedOverflows(std::vector<LogEvent>& events);

}  // namespace dlsim::sim
