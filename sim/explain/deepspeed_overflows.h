// SPDX-License-Identifier: Apache-2.0
// DeepSpeed reports an overflow in up to three lines: its loss scaler, its optimizer and the number
// of the iteration each have their own.
#pragma once

#include <optional>
#include <vector>

#include "sim/explain/log_event.h"

namespace dlsim::sim {

// True for an overflow that states the scale after it.
bool IsOverflowWithScale(const LogEvent& event);

// What an event states of the scale before and after it.
struct StatedScales {
  std::optional<PrintedNumber> used = {}, next = {};

  bool operator==(const StatedScales&) const = default;
};
inline StatedScales ScalesOf(const LogEvent& event) { return {event.used, event.next}; }

inline bool SameScales(const LogEvent& a, const LogEvent& b) { return ScalesOf(a) == ScalesOf(b); }

// Leaves one event per overflow of an engine.
void JoinDeepSpeedOverflows(std::vector<LogEvent>& events);

}  // namespace dlsim::sim
