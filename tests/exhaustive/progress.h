// SPDX-License-Identifier: Apache-2.0
// How far a sweep is, shown on a terminal; and the line of the table that each proof prints.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace dlsim {

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// One line on a terminal, rewritten each second and removed at the end.
class SweepProgress {
 public:
  SweepProgress(std::string name, uint64_t total) : name_(std::move(name)), total_(total) {}
  ~SweepProgress() {
    if (shown_ > 0) std::fputs("\r\033[K", stderr);
  }
  SweepProgress(const SweepProgress&) = delete;
  SweepProgress& operator=(const SweepProgress&) = delete;

  void Advance(uint64_t inputs) {
    done_ += inputs;
    const double seconds = watch_.Seconds();
    if (seconds < shown_ + 1 || isatty(STDERR_FILENO) == 0) return;
    shown_ = seconds;
    const double rate = static_cast<double>(done_) / seconds;
    std::fprintf(stderr, "\r\033[K%s: %.0f%%, %.3g million inputs/s, %.0f s left", name_.c_str(),
                 100 * static_cast<double>(done_) / static_cast<double>(total_), rate / 1e6,
                 static_cast<double>(total_ - done_) / rate);
  }

 private:
  std::string name_;
  uint64_t total_;
  uint64_t done_ = 0;
  double shown_ = 0;  // when the line was last written, in seconds; 0 = never
  Stopwatch watch_;
};

// What a proof found. Prints one line that tools/prove makes its table of.
struct Tally {
  uint64_t comparisons = 0;
  uint64_t differences = 0;

  Tally& operator+=(const Tally& other) {
    comparisons += other.comparisons;
    differences += other.differences;
    return *this;
  }
};

inline void PrintProof(const char* proof, const std::string& format, const char* rounding,
                       const Tally& tally, const Stopwatch& watch) {
  std::printf("proof %s %s %s: %llu comparisons, %llu differences, %.1f s\n", proof, format.c_str(),
              rounding, static_cast<unsigned long long>(tally.comparisons),
              static_cast<unsigned long long>(tally.differences), watch.Seconds());
}

}  // namespace dlsim
