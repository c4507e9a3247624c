// SPDX-License-Identifier: Apache-2.0
// Where the steps begin of which a log tells: with the training, or amid it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/explain/log_event.h"

namespace dlsim::sim {

struct LogStart {
  bool of_training = true;    // false: the training began before the log
  int64_t first_index = 1;    // the number of a training's first step
  int64_t done = 0;           // steps of the training before the first one of the log
  int64_t skipped_total = 0;  // of those
};

// Messages of overflows that stand before the first record of a log that begins amid training are
// of the steps right before it, as far as they have no numbers.
LogStart FindStart(std::span<const LogEvent> events, bool shows_next);

// True for what tells of the steps up to a number, which is there and not negative.
bool IsRecord(const LogEvent& event);

// True if a first record counts steps from 0; DeepSpeed's own count tells of no step then.
bool CountsFromZero(const LogEvent& first);

// Whether records that show a scale once per step show the one after it.
bool ShowsNextScale(const std::vector<LogEvent>& events);

// Whether a record tells the scale after its step rather than the one that it used; `shows_next`
// decides where the wording does not.
bool ShowsNext(const LogEvent& event, bool shows_next);

// Returns of how many steps up to a record the log tells by it, by messages of `overflows` before
// it, and by its count of those skipped among `interval`.
int64_t StepsTold(const LogEvent& record, int64_t overflows, int64_t interval, bool shows_next);

}  // namespace dlsim::sim
