// SPDX-License-Identifier: Apache-2.0
// Progress of long work on standard error: one line redrawn on a terminal, else one line every ten
// seconds. Nothing for work that ends at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dlsim {

enum class ProgressMode { kAuto, kQuiet };

class Progress {
 public:
  // `total_bytes` is the size of the work.
  Progress(std::string label, uint64_t total_bytes, ProgressMode mode);
  ~Progress();  // removes the line from a terminal
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Tells how much is done.
  void Update(uint64_t done_bytes);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  uint64_t total_bytes_;
  bool quiet_, terminal_;
  bool drawn_ = false;
  Clock::time_point start_, next_;
};

}  // namespace dlsim
