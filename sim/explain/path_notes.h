// SPDX-License-Identifier: Apache-2.0
// What a path leaves out of its log, or presumes, as notes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/explain/log_event.h"

namespace dlsim::sim {

struct LeftOut {
  int64_t stretches = 0;  // that were run again after a resume
  int64_t surplus = 0;    // messages of overflows for which there are no steps
  int64_t presumed = 0;   // overflows that no line reports
  int64_t uncounted = 0;  // of those, where a line counts none
  int64_t epochs = 0;     // that count their steps from zero
};

void AddPathNotes(const LeftOut& left_out, const std::vector<LogEvent>& events,
                  std::vector<std::string>& notes);

}  // namespace dlsim::sim
