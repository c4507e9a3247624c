// SPDX-License-Identifier: Apache-2.0
// Progress of long work, told to the caller: often where it replaces what was shown before, else
// every ten seconds. Nothing for work that ends at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "sim/base/caller.h"

namespace dlsim::sim {

enum class ProgressMode { kAuto, kQuiet };
enum class ProgressUnit { kBytes, kCount, kPolicySteps };  // counts are shown without a rate

class Progress {
 public:
  // `total` is the size of the work.
  Progress(std::string label, uint64_t total, ProgressMode mode,
           ProgressUnit unit = ProgressUnit::kBytes);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Tells how much is done, about once a step. Throws Canceled if the caller ends the work.
  void Update(uint64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  uint64_t total_;
  ProgressUnit unit_;
  Caller& caller_;
  bool quiet_;
  bool drawn_ = false;
  Clock::time_point start_, next_;
};

}  // namespace dlsim::sim
