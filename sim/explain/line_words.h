// SPDX-License-Identifier: Apache-2.0
// The words that a line of a log must have to say anything: most lines of a large log have none.
#pragma once

#include <string_view>

namespace dlsim::sim {

struct LineWords {
  bool scale = false;  // of the loss scale, or of a skipped step
  bool loss = false;   // of the loss
};

// Returns of what the line has words.
LineWords FindLineWords(std::string_view line);

}  // namespace dlsim::sim
