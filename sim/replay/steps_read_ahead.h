// SPDX-License-Identifier: Apache-2.0
// Has the system read small steps before they are opened.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "dlsim/sim/gradient_source.h"
#include "src/trace/read_only_file.h"

namespace dlsim::sim {

// The steps from `first` on, as far ahead as a file is read.
class StepsReadAhead {
 public:
  StepsReadAhead(const GradientSource& source, size_t first) : source_(source), next_(first + 1) {
    const uint64_t bytes = source.facts().file_bytes / std::max<size_t>(1, source.step_count());
    depth_ = std::clamp<uint64_t>(ReadOnlyFile::kAheadBytes / (bytes + 1), 1, kMostSteps);
  }

  // Called by any thread before it opens step i.
  void Before(size_t i) {
    const size_t end = std::min(source_.step_count(), i + depth_ + 1);
    for (int k = 0; k < kAtOnce; ++k) {
      size_t next = next_;
      if (next >= end || !next_.compare_exchange_strong(next, next + 1)) return;
      source_.ReadAhead(next);
    }
  }

 private:
  static constexpr uint64_t kMostSteps = 256;
  static constexpr int kAtOnce = 4;  // so that nobody waits long for the first steps

  const GradientSource& source_;
  size_t depth_ = 0;
  std::atomic<size_t> next_;
};

}  // namespace dlsim::sim
