// SPDX-License-Identifier: Apache-2.0
// What the scalers of TensorFlow and Paddle's static graph share: a floor of 1 that nobody can set.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dlsim::sim {

// Not std::max: a NaN stays.
inline float AtLeastOne(float scale) { return scale < 1 ? 1.0f : scale; }

inline void NoteFloorOfOne(std::string_view start_name, double start,
                           std::vector<std::string>& notes) {
  if (start < 1) {
    notes.push_back(
        std::string(start_name)
            .append(" below 1: the first decrease raises the scale to 1, the fixed floor"));
  } else {
    notes.push_back("the floor of 1 is fixed: gradients that overflow at 1 skip every step");
  }
}

}  // namespace dlsim::sim
