// SPDX-License-Identifier: Apache-2.0
// What the policies share whose originals are torch's GradScaler or extend it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dlsim/sim/policies.h"

namespace dlsim::sim {

// The assertions of GradScaler's constructor.
inline void CheckFactors(double growth_factor, double backoff_factor,
                         const std::vector<NamedValue>& parameters) {
  if (!(growth_factor > 1.0)) {
    throw PolicyRefusal{"AssertionError", "The growth factor must be > 1.0.", parameters};
  }
  if (!(backoff_factor < 1.0)) {
    throw PolicyRefusal{"AssertionError", "The backoff factor must be < 1.0.", parameters};
  }
}

// Adds notes on an interval that the kernel's int cannot hold or never reaches.
inline void NoteKernelInterval(int64_t asked, int32_t interval, std::vector<std::string>& notes) {
  if (interval != asked) {
    notes.push_back("growth_interval " + std::to_string(asked) +
                    " does not fit the kernel's int and acts as " + std::to_string(interval));
  }
  if (interval < 1) notes.push_back("growth_interval below 1: the scale never grows");
}

}  // namespace dlsim::sim
