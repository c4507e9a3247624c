// SPDX-License-Identifier: Apache-2.0
// Times short slices of work and compares a kernel with its limit, on machines where others work.
#pragma once

#include <functional>

namespace dlsim::bench {

// Repeats a call for about half a millisecond at a time: short enough to find slices that nobody
// interrupts, long enough for the clock.
class Slice {
 public:
  explicit Slice(std::function<void()> call);

  // Runs a slice and returns seconds per call.
  double Seconds() const;

 private:
  std::function<void()> call_;
  int calls_ = 1;
};

// Lower quartiles of seconds per call.
struct PairedSeconds {
  double kernel = 0;
  double limit = 0;
};

// Times slices of a kernel and of its limit in turn for about `budget` seconds, at least one pair
// and at most 32. Whoever else works on the machine slows both down alike, and few slices.
PairedSeconds TimePaired(const std::function<void()>& kernel, const std::function<void()>& limit,
                         double budget);

// Seconds of a clock that never goes back.
double Now();

}  // namespace dlsim::bench
