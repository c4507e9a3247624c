// SPDX-License-Identifier: Apache-2.0
// How much is done to fit a policy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace dlsim::sim {

// With more alternatives in parallel than this a fit is not decided.
inline constexpr size_t kMostBranches = 2000;

// This number of steps that leave no choice takes as long as one that does.
inline constexpr int64_t kPlainSteps = 4;

// The steps taken on all ways, and how many may be.
struct Work {
  uint64_t done = 0, most = 0;
  uint64_t trials = 0;    // see AddTrial
  bool given_up = false;  // too many ways in parallel

  bool IsTooMuch() const { return given_up || done > most; }

  // Adds a stretch that was passed on `ways`.
  void AddStretch(size_t ways) { done += 1 + ways; }

  // Adds `count` plain steps from the step `first` of a stretch on.
  void AddPlain(int64_t first, int64_t count) {
    const auto until = [](int64_t step) { return (step + kPlainSteps - 1) / kPlainSteps; };
    done += static_cast<uint64_t>(until(first + count) - until(first));
  }

  // Notes that an overflow was tried right after a step that changed the scale. Such a trial takes
  // as long as a step that leaves a choice, but most policies change the scale rarely: it counts as
  // a step only after many of them.
  void AddTrial() {
    constexpr uint64_t kMany = 4'000'000;
    if (++trials > std::min(most, kMany) * kPlainSteps) ++done;
  }

  // After this number of plain steps it is certainly, or nearly, too much.
  int64_t PlainRoom() const {
    constexpr uint64_t kEnough = 1'000'000'000;
    return static_cast<int64_t>(std::min(most - done + 1, kEnough)) * kPlainSteps;
  }
};

}  // namespace dlsim::sim
