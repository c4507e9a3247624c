// SPDX-License-Identifier: Apache-2.0
// Progress of long work on standard error: one line redrawn on a terminal, else one line every ten
// seconds. Nothing for work that ends at once. Where the environment's DLSIM_PROGRESS_FD names a
// descriptor, that gets it instead, for a program that draws it: lines "DONE TOTAL TEXT", and an
// empty one at the end of the work.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dlsim::sim {

enum class ProgressMode { kAuto, kQuiet };
enum class ProgressUnit { kBytes, kCount, kPolicySteps };  // counts are shown without a rate

class Progress {
 public:
  // `total` is the size of the work.
  Progress(std::string label, uint64_t total, ProgressMode mode,
           ProgressUnit unit = ProgressUnit::kBytes);
  ~Progress();  // removes the line from a terminal
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Tells how much is done.
  void Update(uint64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  void Write(const std::string& text) const;

  std::string label_;
  uint64_t total_;
  ProgressUnit unit_;
  int descriptor_;  // of the program that draws; -1 without one
  bool quiet_, terminal_;
  bool drawn_ = false;
  Clock::time_point start_, next_;
};

}  // namespace dlsim::sim
