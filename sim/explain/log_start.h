// SPDX-License-Identifier: Apache-2.0
// Where the steps of a log begin: at the start of the training, or in the middle of it.
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

// Messages of overflows before the first record of a log that starts in mid-training are
// of the steps right before it, as far as they have no numbers.
LogStart FindStart(std::span<const LogEvent> events, bool shows_next);

// True for what reports the steps up to a number, which is there and not negative.
bool IsRecord(const LogEvent& event);

// True if a first record counts steps from 0; DeepSpeed's own count reports no step then.
bool CountsFromZero(const LogEvent& first);

// Whether records that show a scale once per step show the one after it.
bool ShowsNextScale(const std::vector<LogEvent>& events);

// Whether a record states the scale after its step rather than the one that it used; `shows_next`
// decides where the wording does not.
bool ShowsNext(const LogEvent& event, bool shows_next);

// Returns how many steps up to a record the log reports by it, by messages of `overflows` before
// it, and by its count of those skipped among `interval`.
int64_t StepsImplied(const LogEvent& record, int64_t overflows, int64_t interval, bool shows_next);

}  // namespace dlsim::sim
